"""A scikit-learn estimator: `fit`, `partial_fit` with new classes, `predict`, `predict_proba`, `score`."""

import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from torch import Tensor

from etag.app import settings as default_settings
from etag.app.evaluating import images_to_evaluate
from etag.app.folders import LessonImages, image_files, lesson_files, lesson_images
from etag.app.inspecting import inspect_all
from etag.app.labeled import FolderOptions
from etag.app.lessons import check_can_learn, first_lesson, learn, next_lesson
from etag.app.predicting import is_rejected, predict_pixels, unlabeled_images
from etag.core.errors import EtagError
from etag.core.files import checksum
from etag.core.text import printable
from etag.data.images import MemoryImages
from etag.data.rows import hold_out_rows
from etag.experiments.config import RunConfig
from etag.learner.model_directory import ModelDirectory
from etag.learner.versions import ModelInfo, Name, name_to_json
from etag.models.classifier import Classifier


class IncrementalClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Learns classes of images, later more of them, and stores no image.

    Images are arrays or tensors of shape (n, height, width), (n, height, width, channels) or (n, channels, height,
    width), integers from 0 to 255 or floats from 0 to 1; or anything that yields pairs of an image and its class; or
    a folder with one sub-folder per class, without `y`. `predict` also accepts a file, a folder or a pattern. Classes
    may be text, numbers or tuples. Without `method` it chooses as `etag learn` does: ridge regression on a pre-trained
    backbone, if its weights are installed and the images have colors, else eTag from scratch.
    """

    def __init__(
        self,
        method: str | None = None,
        *,
        from_scratch: bool = False,
        size: int | None = None,
        width: int | None = None,
        steps: int | None = None,
        weights: str | None = None,
        seed: int = 0,
        settings: dict[str, Any] | None = None,
        verbose: bool = False,
    ) -> None:
        self.method, self.from_scratch = method, from_scratch
        self.size, self.width, self.steps = size, width, steps
        self.weights, self.seed, self.settings, self.verbose = weights, seed, settings, verbose

    def fit(self, X: Any, y: Any = None, *, labels: str | Path | None = None, nested: bool = False) -> Self:
        """Learn from scratch; what was learned before is discarded. For a folder, `labels` is a CSV file with the
        columns path and label, or "names" for names of files; with `nested` its sub-folders are the classes, whatever
        is in them."""
        self._home = tempfile.TemporaryDirectory(prefix="etag-")
        self._directory = ModelDirectory(Path(self._home.name) / "model")
        return self._learn(X, y, _reading(labels, nested))

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        classes: Any = None,  # noqa: ARG002 (as sklearn calls it)
        *,
        labels: str | Path | None = None,
        nested: bool = False,
    ) -> Self:
        """Learn new classes besides the known ones; `labels` and `nested` as for `fit`."""
        if not hasattr(self, "_directory"):
            return self.fit(X, y, labels=labels, nested=nested)
        return self._learn(X, y, _reading(labels, nested))

    def _learn(self, X: Any, y: Any, options: FolderOptions) -> Self:
        with self._directory.locked():
            known = check_can_learn(self._directory) if self._directory.exists() else None
            if isinstance(X, str | Path):
                about, config, images = self._from_folder(known, Path(X), options)
            else:
                about, config, images = self._from_arrays(known, X, y)
            result = learn(self._directory, about, images, config.runtime, verbose=self.verbose)
        self._loaded: tuple[Classifier, ModelInfo] | None = None
        self.classes_ = _array(result.about.classes)
        self.n_features_in_ = about.channels * about.preprocess.size**2
        return self

    def _from_folder(
        self, known: ModelInfo | None, folder: Path, options: FolderOptions
    ) -> tuple[ModelInfo, RunConfig, LessonImages]:
        files = lesson_files(folder, known.classes if known else (), options=options)
        self._tell(files.left_out)
        inspect_all(files.all, verbose=self.verbose).check()
        side = partial(default_settings.side_for, files.to_learn)
        about, config = self._configured(known, len(files.to_learn), side, channels=3)
        images = lesson_images(files, about, config.data.memory, config.data.workers)
        return about, config, images

    def _tell(self, left_out: Iterable[str]) -> None:
        """Print lines about files that are not read, or warn of them."""
        for line in left_out:
            if self.verbose:
                print(printable(line))
            else:
                warnings.warn(line, stacklevel=4)

    def _from_arrays(self, known: ModelInfo | None, X: Any, y: Any) -> tuple[ModelInfo, RunConfig, LessonImages]:
        if y is None:
            X, y = _pairs(X)
        pixels, names = as_pixels(X), _names(y)
        if len(pixels) != len(names):
            raise EtagError(f"there are {len(pixels)} images, but {len(names)} labels: pass one label per image.")
        order = _unique(names)
        if again := [name for name in order if known and name in known.classes]:
            raise EtagError(f"these classes are known already: {', '.join(map(repr, again))}.")
        if known is None and len(order) < 2:
            raise EtagError("a first lesson needs at least two classes.")
        about, config = self._configured(known, len(names), lambda: pixels.shape[-1], pixels.shape[1])
        _check_channels(pixels, about)
        number = {name: place for place, name in enumerate(order)}
        given = MemoryImages(pixels, torch.tensor([number[name] for name in names]))
        fingerprint = checksum(given.pixels.numpy().tobytes() + given.labels.numpy().tobytes())
        images = given.resized(about.preprocess.resize)
        train, held_out = (images.select(rows) for rows in hold_out_rows(images.labels))
        return about, config, LessonImages(train, held_out, tuple(order), fingerprint)

    def _configured(
        self, known: ModelInfo | None, images: int, side: Callable[[], int], channels: int
    ) -> tuple[ModelInfo, RunConfig]:
        given = {"method": self.method, "seed": self.seed, "model.weights": self.weights, "train.steps": self.steps}
        given |= {"data.size": self.size, "model.width": self.width}
        values = {key: value for key, value in given.items() if value is not None} | (self.settings or {})
        if known is None:
            from_scratch = self.from_scratch or (channels != 3 and self.weights is None)
            recipe, defaults = default_settings.for_new_model(values, from_scratch, images, side)
            about, config = first_lesson(images, defaults | values, recipe=recipe)
            gray = replace(about.preprocess, mean=(0.5,), std=(0.25,))
            return (about if channels == 3 else replace(about, channels=1, preprocess=gray)), config
        return next_lesson(known, images, {key: value for key, value in values.items() if key.startswith("train.")})

    def predict_proba(self, X: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Calibrated probabilities: one row per image, one column for each of `classes_`."""
        _, probability, _ = self._predictions(X)
        rows: np.ndarray[Any, np.dtype[np.float32]] = probability.numpy()
        return rows

    def is_rejected(self, X: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each image seems to be of no known class, as `etag predict --reject` decides it."""
        about, _, familiarity = self._predictions(X)
        rows: np.ndarray[Any, np.dtype[np.bool_]] = is_rejected(about, familiarity).numpy()
        return rows

    def _predictions(self, X: Any) -> tuple[ModelInfo, Tensor, Tensor]:
        """Probabilities of images, and how familiar each is."""
        if not hasattr(self, "_directory"):
            raise NotFittedError("this IncrementalClassifier has learned no class yet: call fit first.")
        if self._loaded is None:
            self._loaded = self._directory.load_classifier()
        classifier, about = self._loaded
        images = self._images(about, X)
        _check_channels(images.pixels, about)
        return about, *predict_pixels(classifier, about, images.pixels)

    def _images(self, about: ModelInfo, X: Any) -> MemoryImages:
        """Images of the model's size; a file, folder or pattern stands for the files that `etag predict` reads."""
        if isinstance(X, _Files):
            return unlabeled_images(X.paths, about, workers=1).in_memory()
        if isinstance(X, str | Path):
            files, not_read = image_files([str(X)])
            self._tell([str(not_read)] if not_read.kinds else [])
            return unlabeled_images(files, about, workers=1).in_memory()
        pixels = as_pixels(X)
        return MemoryImages(pixels, torch.zeros(len(pixels)).long()).resized(about.preprocess.resize)

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """The likeliest class of each image."""
        places = self.predict_proba(X).argmax(1)
        names: np.ndarray[Any, Any] = self.classes_[places]
        return names

    def score(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        labels: str | Path | None = None,
        nested: bool = False,
    ) -> float:
        """The share of images that are classified correctly; a folder of labeled images needs no `y`, and is read as
        `etag evaluate` does. `labels` and `nested` as for `fit`."""
        if isinstance(X, str | Path) and y is None:
            found, listing, _ = images_to_evaluate(Path(X), _reading(labels, nested))
            self._tell(found.remarks)
            y = [name for name, files in listing.items() for _ in files]
            X = _Files([file for files in listing.values() for file in files])
        accuracy: float = super().score(X, y, sample_weight)
        return accuracy

    def save(self, path: str | Path) -> None:
        """Write a model directory, which `etag predict` and `etag learn` accept too."""
        if Path(path).exists():
            raise EtagError(f"'{path}' exists already: choose another directory.")
        self._directory.copy_to(Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a model directory."""
        about = ModelDirectory(path).about()
        loaded = cls(about.method, size=about.preprocess.size, seed=about.config["seed"])
        loaded._restore(ModelDirectory(path).copy_to)
        return loaded

    def _restore(self, fill: Any) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="etag-")
        self._directory, self._loaded = ModelDirectory(Path(self._home.name) / "model"), None
        fill(self._directory.path)
        about = self._directory.about()
        self.classes_ = _array(about.classes)
        self.n_features_in_ = about.channels * about.preprocess.size**2

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key not in ("_home", "_directory", "_loaded")}
        if hasattr(self, "_directory"):
            files = [file for file in self._directory.path.rglob("*") if file.is_file()]
            state["_files"] = {str(file.relative_to(self._directory.path)): file.read_bytes() for file in files}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("_files", None)
        self.__dict__.update(state)
        if files is not None:

            def fill(home: Path) -> None:
                for name, data in files.items():
                    (home / name).parent.mkdir(parents=True, exist_ok=True)
                    (home / name).write_bytes(data)

            self._restore(fill)


@dataclass(frozen=True)
class _Files:
    """Image files, in this order."""

    paths: list[str]


def _reading(labels: str | Path | None, nested: bool) -> FolderOptions:
    return FolderOptions(None if labels is None else str(labels), nested)


def _check_channels(pixels: Tensor, about: ModelInfo) -> None:
    if pixels.shape[1] != about.channels:
        raise EtagError(f"these images have {pixels.shape[1]} channels, but the model was trained on {about.channels}.")


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


def _pairs(X: Iterable[Any]) -> tuple[Any, list[Name]]:
    """Images and classes of a data set that yields pairs."""
    pairs = [X[place] for place in range(len(X))] if isinstance(X, Sequence) else list(X)
    if not pairs or not isinstance(pairs[0], tuple | list) or len(pairs[0]) != 2:
        raise EtagError("without y, X must be a folder or yield pairs of an image and its class.")
    return np.stack([np.asarray(image) for image, _ in pairs]), [name for _, name in pairs]


def _names(y: Any) -> list[Name]:
    values = y.tolist() if isinstance(y, np.ndarray | Tensor) else list(y)
    names = [tuple(value) if isinstance(value, list) else value for value in values]
    for name in dict.fromkeys(names):
        name_to_json(name)  # a name that cannot be saved is refused now, not after training
    return names


def _unique(names: Sequence[Name]) -> list[Name]:
    """The distinct names: sorted if possible, otherwise in order of appearance."""
    distinct = list(dict.fromkeys(names))
    try:
        return sorted(distinct)  # type: ignore[type-var]
    except TypeError:
        return distinct


def _array(names: Sequence[Name]) -> np.ndarray[Any, Any]:
    """One entry per class, also for tuples."""
    if any(isinstance(name, tuple) for name in names) or len({type(name) for name in names}) > 1:
        array = np.empty(len(names), dtype=object)
        array[:] = names
        return array
    return np.array(names)
