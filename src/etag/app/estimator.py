"""The scikit-learn manner: `fit`, `partial_fit` with new classes, `predict`, `predict_proba`, `score`."""

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from torch import Tensor

from etag.app import settings as automatic
from etag.app.bundle import About, Bundle, Classifier, Name
from etag.app.folders import image_files, lesson_files, material
from etag.app.learning import Material, learn
from etag.app.lessons import begin, go_on
from etag.app.predicting import probabilities, unlabeled_images
from etag.core.errors import EtagError
from etag.core.files import checksum
from etag.data.folders import list_classes
from etag.data.images import MemoryImages

HELD_OUT = 5  # every so many-th image of a class


class IncrementalClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Learns classes of images, later more of them, and keeps no image.

    Images are arrays or tensors of shape (n, height, width), (n, height, width, channels) or (n, channels, height,
    width), whole numbers from 0 to 255 or fractions from 0 to 1; or anything that yields pairs of an image and its
    class; or a folder with a sub-folder a class, and then there is no `y`. To predict, a folder, a file or a pattern
    does as well. Classes may be text, numbers or tuples.
    """

    def __init__(
        self,
        method: str = "etag",
        *,
        size: int | None = None,
        width: int | None = None,
        steps: int | None = None,
        weights: str | None = None,
        seed: int = 0,
        settings: dict[str, Any] | None = None,
        verbose: bool = False,
    ) -> None:
        self.method, self.size, self.width, self.steps = method, size, width, steps
        self.weights, self.seed, self.settings, self.verbose = weights, seed, settings, verbose

    # -- learning -------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from nothing; what was known is forgotten."""
        self._home = tempfile.TemporaryDirectory(prefix="etag-")
        self._bundle = Bundle(Path(self._home.name) / "bundle")
        return self._learn(X, y)

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None) -> Self:  # noqa: ARG002 (as sklearn calls it)
        """Learn new classes beside those that are known."""
        return self._learn(X, y) if hasattr(self, "_bundle") else self.fit(X, y)

    def _learn(self, X: Any, y: Any) -> Self:
        with self._bundle.locked():
            known = self._bundle.about() if self._bundle.exists() else None
            about, lesson = self._folder(known, X) if isinstance(X, str | Path) else self._arrays(known, X, y)
            outcome = learn(self._bundle, about, lesson, verbose=self.verbose)
        self._loaded: tuple[Classifier, About] | None = None
        self.classes_ = _array(outcome.about.classes)
        self.n_features_in_ = about.channels * about.preprocess.size**2
        return self

    def _folder(self, known: About | None, folder: str | Path) -> tuple[About, Material]:
        listing = lesson_files(Path(folder), known.classes if known else ())
        counts = [len(files) for files in listing.values()]
        files = [file for files in listing.values() for file in files]
        about = self._about(known, sum(counts), automatic.for_images(files, self.weights)["data.size"], channels=3)
        data = about.config.data
        return about, material(listing, about.preprocess.size, data.memory, data.workers)

    def _arrays(self, known: About | None, X: Any, y: Any) -> tuple[About, Material]:
        if y is None:
            X, y = _pairs(X)
        pixels, names = as_pixels(X), _names(y)
        if len(pixels) != len(names):
            raise EtagError(
                f"there are {len(pixels)} images, but {len(names)} classes: give one class for each image."
            )
        order = _unique(names)
        if again := [name for name in order if known and name in known.classes]:
            raise EtagError(f"these classes are known already: {', '.join(map(repr, again))}.")
        if known is None and len(order) < 2:
            raise EtagError("there must be two classes at least to tell apart.")
        about = self._about(known, len(names), pixels.shape[-1], pixels.shape[1])
        if pixels.shape[1] != about.channels:
            raise EtagError(
                f"these images have {pixels.shape[1]} channels, but those learned before {about.channels}."
            )
        number = {name: place for place, name in enumerate(order)}
        images = MemoryImages(pixels, torch.tensor([number[name] for name in names])).resized(about.preprocess.size)
        train, held_out = _split(images, order)
        mark = checksum(images.pixels.numpy().tobytes() + images.labels.numpy().tobytes())
        return about, Material(train, held_out, tuple(order), mark)

    def _about(self, known: About | None, images: int, side: int, channels: int) -> About:
        given = {"method": self.method, "seed": self.seed, "model.weights": self.weights, "train.steps": self.steps}
        given |= {"data.size": self.size or side, "model.width": self.width}
        said = {key: value for key, value in given.items() if value is not None} | (self.settings or {})
        if known is None:
            about = begin(images, said | {"model.width": self.width or 16})
            gray = replace(about.preprocess, mean=(0.5,), std=(0.25,))
            return about if channels == 3 else replace(about, channels=1, preprocess=gray)
        train = {key: value for key, value in said.items() if key.startswith("train.")}
        return go_on(known, images, train)

    # -- predicting -----------------------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Calibrated probabilities: one row an image, one column for each of `classes_`."""
        if not hasattr(self, "_bundle"):
            raise NotFittedError("this IncrementalClassifier knows no class yet: call fit first.")
        if self._loaded is None:
            self._loaded = self._bundle.classifier()
        classifier, about = self._loaded
        images = self._images(about, X)
        if images.pixels.shape[1] != about.channels:
            raise EtagError(
                f"these images have {images.pixels.shape[1]} channels, but those learned {about.channels}."
            )
        found: np.ndarray[Any, np.dtype[np.float32]] = probabilities(classifier, about, images.pixels).numpy()
        return found

    def _images(self, about: About, X: Any) -> MemoryImages:
        """As the bundle takes them; a file, a folder or a pattern stands for the files that `etag predict` reads."""
        if isinstance(X, str | Path):
            return unlabeled_images(list(image_files([str(X)])), about, workers=1).in_memory()
        pixels = as_pixels(X)
        return MemoryImages(pixels, torch.zeros(len(pixels)).long()).resized(about.preprocess.size)

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """The likeliest class of each image."""
        answers = self.predict_proba(X).argmax(1)
        found: np.ndarray[Any, Any] = self.classes_[answers]
        return found

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """The share of images whose class is right; of a folder, whose sub-folders are the classes, without `y`."""
        if isinstance(X, str | Path) and y is None:
            y = [name for name, files in list_classes(Path(X), fewest=1).items() for _ in files]
        found: float = super().score(X, y, sample_weight)
        return found

    # -- keeping --------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write a bundle, which `etag predict` and `etag learn` take too."""
        if Path(path).exists():
            raise EtagError(f"'{path}' exists already: choose another directory.")
        copytree(self._bundle.path, path, ignore=lambda *_: [".lock"])

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """From a bundle."""
        about = Bundle(path).about()
        made = cls(about.config.method.name, size=about.preprocess.size, seed=about.config.seed)
        made._restore(lambda home: copytree(path, home))
        return made

    def _restore(self, fill: Any) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="etag-")
        self._bundle, self._loaded = Bundle(Path(self._home.name) / "bundle"), None
        fill(self._bundle.path)
        about = self._bundle.about()
        self.classes_ = _array(about.classes)
        self.n_features_in_ = about.channels * about.preprocess.size**2

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key not in ("_home", "_bundle", "_loaded")}
        if hasattr(self, "_bundle"):
            files = [file for file in self._bundle.path.rglob("*") if file.is_file()]
            state["_files"] = {str(file.relative_to(self._bundle.path)): file.read_bytes() for file in files}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("_files", None)
        self.__dict__.update(state)
        if files is not None:
            self._restore(lambda home: _write_files(home, files))


def _write_files(home: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(data)


def as_pixels(X: Any) -> Tensor:
    """Images of any usual kind as uint8 of shape (n, channels, height, width)."""
    images = X if isinstance(X, Tensor) else torch.from_numpy(np.ascontiguousarray(np.asarray(X)))
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4:
        raise EtagError(
            f"images have the shape (n, height, width), channels before or after these, not {tuple(images.shape)}."
        )
    if images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.permute(0, 3, 1, 2)
    if images.shape[1] not in (1, 3):
        raise EtagError(f"images have 1 or 3 channels, but these have the shape {tuple(images.shape)}.")
    if images.is_floating_point():
        if not images.isfinite().all():
            raise EtagError("images must be made of numbers, but some of these hold NaN or infinity.")
        if len(images) and (images.min() < 0 or images.max() > 1):
            raise EtagError("images of fractions run from 0 to 1: scale them, or give whole numbers from 0 to 255.")
        images = (images * 255).round()
    elif len(images) and (images.min() < 0 or images.max() > 255):
        raise EtagError("images of whole numbers run from 0 to 255.")
    return images.to(torch.uint8).contiguous()


def _pairs(X: Iterable[Any]) -> tuple[Any, list[Name]]:
    """From a data set that yields images with their classes."""
    pairs = [X[place] for place in range(len(X))] if isinstance(X, Sequence) else list(X)
    if not pairs or not isinstance(pairs[0], tuple | list) or len(pairs[0]) != 2:
        raise EtagError("without y, X must be a folder or yield pairs of an image and its class.")
    return np.stack([np.asarray(image) for image, _ in pairs]), [name for _, name in pairs]


def _names(y: Any) -> list[Name]:
    values = y.tolist() if isinstance(y, np.ndarray | Tensor) else list(y)
    return [tuple(value) if isinstance(value, list) else value for value in values]


def _unique(names: Sequence[Name]) -> list[Name]:
    """Sorted where they can be, else as they come."""
    found = list(dict.fromkeys(names))
    try:
        return sorted(found)  # type: ignore[type-var]
    except TypeError:
        return found


def _array(names: Sequence[Name]) -> np.ndarray[Any, Any]:
    """One entry a class, tuples too."""
    if any(isinstance(name, tuple) for name in names) or len({type(name) for name in names}) > 1:
        found = np.empty(len(names), dtype=object)
        found[:] = names
        return found
    return np.array(names)


def _split(images: MemoryImages, names: Sequence[Name]) -> tuple[MemoryImages, MemoryImages]:
    counts = images.labels.bincount(minlength=len(names))
    if scarce := [repr(name) for name, count in zip(names, counts.tolist(), strict=True) if count < 2]:
        raise EtagError(
            f"classes with a single image ({', '.join(scarce)}) cannot be learned and judged: add images."
        )
    held = torch.zeros(len(images), dtype=torch.bool)
    for label in range(len(names)):
        rows = (images.labels == label).nonzero().flatten()
        held[rows[HELD_OUT - 1 :: HELD_OUT] if len(rows) >= HELD_OUT else rows[-1:]] = True
    rows = torch.arange(len(images))
    return images.select(rows[~held]), images.select(rows[held])
