"""Images that a Python program passes: arrays, tensors, PIL images, of one size or of several."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from etag.core.errors import EtagError
from etag.core.images import Resize
from etag.data.decode import pixels_of
from etag.data.images import MemoryImages
from etag.learner.versions import ModelInfo, Name, name_to_json

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class GivenImages:
    """Images of one size as a tensor of shape (n, channels, height, width), or of several sizes as PIL images."""

    images: Tensor | list[Image.Image]

    def __len__(self) -> int:
        return len(self.images)

    @property
    def channels(self) -> int:
        """1 if all images are gray, else 3."""
        if isinstance(self.images, Tensor):
            return int(self.images.shape[1])
        return 1 if self.images and all(image.mode in ("1", "L", "I;16") for image in self.images) else 3

    @property
    def side(self) -> int:
        """The width of the images, or the median of their shorter sides."""
        if isinstance(self.images, Tensor):
            return int(self.images.shape[-1])
        return round(median(min(image.size) for image in self.images))

    def for_model(self, about: ModelInfo, labels: Tensor | None = None) -> MemoryImages:
        """The images at the size of the model; arrays must have its channels."""
        labels = torch.zeros(len(self)).long() if labels is None else labels
        resize, images = about.preprocess.resize, self.images
        if isinstance(images, Tensor):
            if images.shape[1] != about.channels:
                raise EtagError(
                    f"these images have {images.shape[1]} channels, but the model was trained on {about.channels}."
                )
            return MemoryImages(images, labels).resized(resize)
        return MemoryImages(_stacked(images, resize, about.channels), labels)


def _stacked(images: Sequence[Image.Image], resize: Resize, channels: int) -> Tensor:
    pixels = torch.empty(len(images), channels, resize.side, resize.side, dtype=torch.uint8)
    for row, image in enumerate(images):
        pixels[row] = torch.from_numpy(pixels_of(image, resize, channels))
    return pixels


def given_images(X: Any) -> GivenImages:
    """Images of any common kind; a PIL image, or an array of shape (height, width, 3), is one image."""
    if isinstance(X, Image.Image):
        return GivenImages([X])
    if isinstance(X, list | tuple):
        pictures = any(isinstance(image, Image.Image) for image in X)
        if pictures or len({np.shape(image) for image in X}) > 1:
            return GivenImages([_picture(image) for image in X])
    if np.ndim(X) == 3 and np.shape(X)[2] == 3 and np.shape(X)[0] > 3:
        X = X[None]
    return GivenImages(as_pixels(X))


def _picture(image: Any) -> Image.Image:
    if isinstance(image, Image.Image):
        return image
    if np.ndim(image) not in (2, 3):
        raise EtagError(f"an image is a PIL image or an array of 2 or 3 dimensions, but one has {np.ndim(image)}.")
    return Image.fromarray(as_pixels(np.asarray(image)[None])[0].permute(1, 2, 0).squeeze(2).numpy())


def as_pixels(X: Any) -> Tensor:
    """Images of any common kind as uint8 of shape (n, channels, height, width)."""
    images = X if isinstance(X, Tensor) else torch.from_numpy(np.ascontiguousarray(np.asarray(X)))
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4:
        raise EtagError(
            f"images need the shape (n, height, width), or with channels before or after these, not "
            f"{tuple(images.shape)}."
        )
    if images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.permute(0, 3, 1, 2)
    if images.shape[1] not in (1, 3):
        raise EtagError(f"images have 1 or 3 channels, but these have the shape {tuple(images.shape)}.")
    if images.is_floating_point():
        if not images.isfinite().all():
            raise EtagError("some of these images contain NaN or infinity: pass finite numbers.")
        if len(images) and (images.min() < 0 or images.max() > 1):
            raise EtagError(
                "images of floats must be between 0 and 1, and these are not: scale them, or pass integers up to 255."
            )
        images = (images * 255).round()
    elif len(images) and (images.min() < 0 or images.max() > 255):
        raise EtagError("images of integers must be between 0 and 255, and these are not: scale them.")
    return images.to(torch.uint8).contiguous()


def pairs_of(X: Iterable[Any]) -> tuple[list[Any], list[Name]]:
    """Images and classes of a data set that yields pairs."""
    pairs = [X[place] for place in range(len(X))] if isinstance(X, Sequence) else list(X)
    if not pairs or not isinstance(pairs[0], tuple | list) or len(pairs[0]) != 2:
        raise EtagError("without y, X must be a folder or yield pairs of an image and its class.")
    return [image for image, _ in pairs], [name for _, name in pairs]


def names_of(y: Any) -> list[Name]:
    """The class of each image; a name that cannot be saved is refused now, not after training."""
    values = y.tolist() if isinstance(y, np.ndarray | Tensor) else list(y)
    names = [tuple(value) if isinstance(value, list) else value for value in values]
    for name in dict.fromkeys(names):
        name_to_json(name)
    return names


def distinct(names: Sequence[Name]) -> list[Name]:
    """The distinct names: sorted if possible, otherwise in order of appearance."""
    found = list(dict.fromkeys(names))
    try:
        return sorted(found)  # type: ignore[type-var]
    except TypeError:
        return found


def names_array(names: Sequence[Name | None]) -> Array:
    """One entry per name, also for tuples."""
    if any(isinstance(name, tuple) for name in names) or len({type(name) for name in names}) > 1:
        array = np.empty(len(names), dtype=object)
        array[:] = names
        return array
    return np.array(names)
