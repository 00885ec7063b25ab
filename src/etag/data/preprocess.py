"""From uint8 images to network inputs: whole batches at a time, on the device."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from etag.core.random import Draws

AREAS, RATIOS = (0.08, 1.0), (3 / 4, 4 / 3)  # of a resized crop: share of the area, width to height


@dataclass(frozen=True)
class Preprocess:
    """Crop, mirror and normalize. Images are square, of `size` pixels a side or more.

    Training takes a random window of `size`: of the zero-padded image where it has that size (4 pixels at 32, the
    same share of other sizes), else of the image itself. Testing takes the center; so does training where `crop` is
    off, because a pixel's place is what counts.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int
    flip: bool
    resized_crop: bool = False  # a window of random size and shape instead, scaled to `size`
    crop: bool = True

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> Self:
        """From what JSON makes of its fields: tuples are lists there."""
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**given)

    def train(self, images: Tensor, draws: Draws, rows: int) -> Tensor:
        """Augmented inputs; `rows` is the size of the global batch."""
        mirror = draws.integers("mirror", 0, 2, rows).bool() if self.flip else None
        if not self.crop:
            return self.test(images)
        if self.resized_crop:
            box = draws.uniform("crop box", rows, 4)
            return self._normalize(resized_crop(images, self.size, box, mirror))
        padding = round(self.size / 8) if images.shape[-1] == self.size else 0
        offsets = images.shape[-1] + 2 * padding - self.size + 1
        down = draws.integers("crop down", 0, offsets, rows)
        right = draws.integers("crop right", 0, offsets, rows)
        return self._normalize(random_crop(images, self.size, padding, down, right, mirror))

    def test(self, images: Tensor) -> Tensor:
        """Inputs without chance: the center of each image."""
        start = (images.shape[-1] - self.size) // 2
        center = slice(start, start + self.size)
        return self._normalize(images[:, :, center, center])

    def pixels(self, inputs: Tensor) -> Tensor:
        """Inputs as pixels between 0 and 1 again."""
        scale, shift = _affine(self.mean, self.std, inputs.device)
        return ((inputs - shift) / (255 * scale)).clamp(0, 1)

    def inputs(self, pixels: Tensor) -> Tensor:
        """The other way; gradients pass."""
        scale, shift = _affine(self.mean, self.std, pixels.device)
        return (pixels * (255 * scale) + shift).contiguous(memory_format=torch.channels_last)

    def _normalize(self, images: Tensor) -> Tensor:
        """Floats of about zero mean and unit variance, in channels_last order."""
        scale, shift = _affine(self.mean, self.std, images.device)
        # a copy in any case: what is given may be the data itself
        floats = images.to(torch.float32, memory_format=torch.channels_last, copy=True)
        return floats.mul_(scale).add_(shift)


def random_crop(
    images: Tensor, size: int, padding: int, down: Tensor, right: Tensor, mirror: Tensor | None
) -> Tensor:
    """A window of each zero-padded image at its own offset; where `mirror` is true, left and right are swapped."""
    padded = functional.pad(images, (padding,) * 4)
    if mirror is not None:
        # mirroring before the crop is the same as after it, up to the (random) offset
        padded = torch.where(mirror[:, None, None, None], padded.flip(3), padded)
    windows = padded.unfold(2, size, 1).unfold(3, size, 1)
    return windows[torch.arange(len(images), device=images.device), :, down, right]


def resized_crop(images: Tensor, size: int, box: Tensor, mirror: Tensor | None) -> Tensor:
    """A window of random area, shape and place of each image, scaled to `size`, as floats in 0 .. 255.

    `box` holds four uniform numbers an image: for area, ratio, and the two offsets.
    """
    area = AREAS[0] + (AREAS[1] - AREAS[0]) * box[:, 0]
    ratio = RATIOS[0] * (RATIOS[1] / RATIOS[0]) ** box[:, 1]
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    # in the coordinates of affine_grid the image is [-1, 1] x [-1, 1]
    x, y = (1 - width) * (2 * box[:, 2] - 1), (1 - height) * (2 * box[:, 3] - 1)
    if mirror is not None:
        width = torch.where(mirror, -width, width)
    nothing = torch.zeros_like(x)
    window = torch.stack([width, nothing, x, nothing, height, y], dim=1).view(-1, 2, 3)
    grid = functional.affine_grid(window, [len(images), images.shape[1], size, size], align_corners=False)
    return functional.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)


@lru_cache(maxsize=8)
def _affine(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    center, spread = torch.tensor(mean), torch.tensor(std)
    scale = (1 / (255 * spread)).view(1, -1, 1, 1)
    return scale.to(device), (-center / spread).view(1, -1, 1, 1).to(device)
