"""A scikit-learn estimator: `fit`, `partial_fit` with new classes, `predict`, `predict_proba`, `score`."""

import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from torch import Tensor

from etag.app import class_changes, settings
from etag.app.evaluating import FolderEvaluation, evaluate_folder, images_to_evaluate
from etag.app.explaining import explain_files
from etag.app.exporting import export_torch
from etag.app.folders import LessonFiles, LessonImages, image_files, lesson_files, lesson_images
from etag.app.given_images import distinct, given_images, names_array, names_of, pairs_of
from etag.app.inspecting import inspect_all
from etag.app.labeled import FolderOptions
from etag.app.lesson_config import check_can_learn, first_lesson, next_lesson
from etag.app.lesson_task import lesson_work
from etag.app.lessons import LessonResult, learn
from etag.app.onnx_files import OnnxExport, export_onnx
from etag.app.predicting import Prediction, is_rejected, predict_files, predict_pixels, unlabeled_images
from etag.app.talk import Talk
from etag.app.version_list import VersionRow, version_rows
from etag.core.errors import EtagError
from etag.core.files import checksum
from etag.core.text import printable
from etag.data.rows import hold_out_rows
from etag.engine.lesson_progress import Progress
from etag.experiments.config import RunConfig
from etag.learner.learner import print_nothing
from etag.learner.model_directory import ModelDirectory
from etag.learner.versions import ModelInfo, Name
from etag.models.classifier import Classifier

Array = np.ndarray[Any, Any]
PATHS = (str, os.PathLike)


@dataclass(frozen=True)
class Predictions(Sequence[Prediction]):
    """Predictions for files, in order. As an array they are the classes; those of rejected images are None."""

    rows: list[Prediction]

    @property
    def paths(self) -> list[str]:
        """The files."""
        return [row.path for row in self.rows]

    @property
    def classes(self) -> list[Name | None]:
        """The class of each file; None if the image is of no known class, or could not be read."""
        return [row.name for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: Any) -> Any:
        return Predictions(self.rows[place]) if isinstance(place, slice) else self.rows[place]

    def __iter__(self) -> Iterator[Prediction]:
        return iter(self.rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(names_array(self.classes), dtype=dtype, copy=copy)


class IncrementalClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Learns classes of images, later more of them, and stores no image.

    Images are arrays or tensors of shape (n, height, width), (n, height, width, channels) or (n, channels, height,
    width), integers from 0 to 255 or floats from 0 to 1; a list of arrays or PIL images of any sizes; anything that
    yields pairs of an image and its class; a list of files; or, without `y`, a folder with one sub-folder per class.
    To predict, one PIL image, one file, a folder or a pattern will do, too. Classes may be text, numbers or tuples.
    Without `method` it chooses as `etag learn` does: ridge regression on a pre-trained backbone, if its weights are
    installed and the images have colors, else eTag from scratch. `on_progress` is called with an
    `etag.app.estimator.Progress` while it learns.
    """

    def __init__(
        self,
        method: str | None = None,
        *,
        from_scratch: bool = False,
        quality: settings.Quality = "balanced",
        size: int | None = None,
        width: int | None = None,
        steps: int | None = None,
        epochs: int | None = None,
        weights: str | None = None,
        device: str | None = None,
        seed: int = 0,
        settings: dict[str, Any] | None = None,
        verbose: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.method, self.from_scratch, self.quality = method, from_scratch, quality
        self.size, self.width, self.steps, self.epochs = size, width, steps, epochs
        self.weights, self.device, self.seed, self.settings = weights, device, seed, settings
        self.verbose, self.on_progress = verbose, on_progress

    # -- learning ----------------------------------------------------------------------------------------------------

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

    def update(self, X: Any, y: Any = None, *, labels: str | Path | None = None, nested: bool = False) -> Self:
        """Learn more images of known classes; `labels` and `nested` as for `fit`."""
        self._check_fitted()
        return self._learn(X, y, _reading(labels, nested), update=True)

    def _learn(self, X: Any, y: Any, options: FolderOptions, update: bool = False) -> Self:
        with self._directory.locked():
            known = check_can_learn(self._directory) if self._directory.exists() else None
            if _are_paths(X):
                about, config, images = self._from_files(known, X, y, options, update)
            else:
                about, config, images = self._from_arrays(known, X, y, update)
            work = None if self.on_progress is None else lesson_work(self._directory, about, images, config.runtime)
            talk = Talk(print if self.verbose else print_nothing, None, self.on_progress, shows_progress=self.verbose)
            self.last_lesson_: LessonResult = learn(self._directory, about, images, config.runtime, talk, work=work)
        self._refresh()
        return self

    def _refresh(self) -> None:
        """Forget what was loaded of an earlier version."""
        self._loaded: tuple[Classifier, ModelInfo] | None = None
        about = self._directory.about()
        self.classes_ = names_array(about.classes)
        self.n_features_in_ = about.channels * about.preprocess.size**2

    def _from_files(
        self, known: ModelInfo | None, X: Any, y: Any, options: FolderOptions, update: bool
    ) -> tuple[ModelInfo, RunConfig, LessonImages]:
        classes = known.classes if known else ()
        if isinstance(X, PATHS):
            files = lesson_files(Path(X), classes, update, options)
        elif y is None:
            raise EtagError("a list of files needs y, the class of each file.")
        else:
            files = LessonFiles(_listing(list(map(os.fspath, X)), list(map(str, names_of(y)))))
            _check_names(list(files.train), classes, update)
        self._tell(files.left_out)
        inspect_all(files.all, verbose=self.verbose).check()
        side = partial(settings.side_for, files.to_learn)
        about, config = self._configured(known, len(files.to_learn), side, channels=3)
        return about, config, lesson_images(files, about, config.data.memory, config.data.workers, update)

    def _tell(self, lines: Iterable[str]) -> None:
        """Print lines about files that are not read, or warn of them."""
        for line in lines:
            if self.verbose:
                print(printable(line))
            else:
                warnings.warn(line, stacklevel=5)

    def _from_arrays(
        self, known: ModelInfo | None, X: Any, y: Any, update: bool
    ) -> tuple[ModelInfo, RunConfig, LessonImages]:
        if y is None:
            X, y = pairs_of(X)
        given, names = given_images(X), names_of(y)
        if len(given) != len(names):
            raise EtagError(f"there are {len(given)} images, but {len(names)} labels: pass one label per image.")
        order = distinct(names)
        _check_names(order, known.classes if known else (), update)
        if known is None and len(order) < 2:
            raise EtagError("a first lesson needs at least two classes.")
        about, config = self._configured(known, len(names), lambda: given.side, given.channels)
        number = {name: place for place, name in enumerate(order)}
        images = given.for_model(about, torch.tensor([number[name] for name in names]))
        fingerprint = checksum(images.stored.numpy().tobytes() + images.labels.numpy().tobytes())
        train, held_out = (images.select(rows) for rows in hold_out_rows(images.labels))
        return about, config, LessonImages(train, held_out, tuple(order), fingerprint, update)

    def _configured(
        self, known: ModelInfo | None, images: int, side: Callable[[], int], channels: int
    ) -> tuple[ModelInfo, RunConfig]:
        given = {"method": self.method, "seed": self.seed, "model.weights": self.weights, "train.steps": self.steps}
        given |= {"train.epochs": self.epochs, "data.size": self.size, "model.width": self.width}
        given |= {"runtime.accelerator": self.device}
        values = {key: value for key, value in given.items() if value is not None} | (self.settings or {})
        if known is None:
            from_scratch = self.from_scratch or (channels != 3 and self.weights is None)
            recipe, defaults = settings.for_new_model(values, from_scratch, images, side)
            defaults |= settings.for_quality(self.quality, recipe, images)
            about, config = first_lesson(images, defaults | values, recipe=recipe)
            gray = replace(about.preprocess, mean=(0.5,), std=(0.25,))
            return (about if channels == 3 else replace(about, channels=1, preprocess=gray)), config
        again = {key: value for key, value in values.items() if key.startswith(("train.", "runtime."))}
        return next_lesson(known, images, again)

    # -- predicting --------------------------------------------------------------------------------------------------

    def predict(self, X: Any) -> "Array | Predictions":
        """The likeliest class of each image. For files, a folder or a pattern: `Predictions`, with the names of the
        files; images of no known class are rejected there, as `etag predict` does it."""
        if _are_paths(X):
            return Predictions(list(predict_files(*self._load(), self._files(X))))
        return self._guesses(X)

    def _guesses(self, X: Any) -> Array:
        likely = self.predict_proba(X)
        names: Array = self.classes_[likely.argmax(1)]
        return names

    def predict_proba(self, X: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Calibrated probabilities: one row per image, one column for each of `classes_`."""
        _, probability, _ = self._predictions(X)
        rows: np.ndarray[Any, np.dtype[np.float32]] = probability.numpy()
        return rows

    def is_rejected(self, X: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each image seems to be of no known class, as `etag predict` decides it."""
        about, _, familiarity = self._predictions(X)
        rows: np.ndarray[Any, np.dtype[np.bool_]] = is_rejected(about, familiarity).numpy()
        return rows

    def score(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        labels: str | Path | None = None,
        nested: bool = False,
    ) -> float:
        """The share of images that are classified correctly, none rejected. A folder of labeled images needs no `y`,
        and is read as `etag evaluate` does; `labels` and `nested` as for `fit`."""
        if isinstance(X, PATHS) and y is None:
            found, listing, _ = images_to_evaluate(Path(X), _reading(labels, nested))
            self._tell(found.remarks)
            y = [name for name, files in listing.items() for _ in files]
            X = [file for files in listing.values() for file in files]
        return float(accuracy_score(y, self._guesses(X), sample_weight=sample_weight))

    def _predictions(self, X: Any) -> tuple[ModelInfo, Tensor, Tensor]:
        """Probabilities of images, and how familiar each is."""
        classifier, about = self._load()
        images = unlabeled_images(self._files(X), about, workers=1).in_memory() if _are_paths(X) else None
        images = images or given_images(X).for_model(about)
        return about, *predict_pixels(classifier, about, images.pixels)

    def _files(self, X: Any) -> list[str]:
        """The files that a path, a pattern, or a list of them stands for."""
        files, not_read = image_files([os.fspath(X)] if isinstance(X, PATHS) else list(map(os.fspath, X)))
        self._tell([str(not_read)] if not_read.kinds else [])
        return files

    def _load(self) -> tuple[Classifier, ModelInfo]:
        self._check_fitted()
        if self._loaded is None:
            self._loaded = self._directory.load_classifier()
        return self._loaded

    def _check_fitted(self) -> None:
        if not hasattr(self, "_directory"):
            raise NotFittedError("this IncrementalClassifier has learned no class yet: call fit first.")

    # -- the model ---------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        folder: str | Path,
        unknown: str | Path | None = None,
        *,
        labels: str | Path | None = None,
        nested: bool = False,
    ) -> FolderEvaluation:
        """Evaluate on a folder of labeled images, as `etag evaluate` does; `labels` and `nested` as for `fit`."""
        self._check_fitted()
        strange = None if unknown is None else Path(unknown)
        return evaluate_folder(self._directory.path, Path(folder), strange, options=_reading(labels, nested))

    def explain(self, files: Any, folder: str | Path) -> Predictions:
        """Predict files, and write a picture for each into a folder: which places speak for its class."""
        classifier, about = self._load()
        found = predict_files(classifier, about, self._files(files))
        return Predictions(list(explain_files(classifier, about, found, Path(folder))))

    def export(self, onnx: str | Path | None = None, torch: str | Path | None = None) -> OnnxExport | None:
        """Write the classifier for other programs, as `etag export` does; returns how an ONNX file differs."""
        self._check_fitted()
        if onnx is None and torch is None:
            raise EtagError("choose what to write: onnx=FILE or torch=FILE.")
        if torch is not None:
            export_torch(self._directory.path, Path(torch))
        return None if onnx is None else export_onnx(self._directory.path, Path(onnx))

    def forget(self, name: Name) -> str:
        """Remove a class; older versions are deleted. Returns in words what remains of it."""
        self._check_fitted()
        _, remains = class_changes.forget_class(self._directory.path, name)
        self._refresh()
        return remains

    def rename(self, old: Name, new: Name) -> Self:
        """Give a class another name."""
        self._check_fitted()
        class_changes.rename_class(self._directory.path, old, new)
        self._refresh()
        return self

    def versions(self) -> list[VersionRow]:
        """The stored versions, oldest first."""
        self._check_fitted()
        return version_rows(self._directory.path)

    def rollback(self, to: int | None = None) -> Self:
        """Return to a stored version, by default to the one before the last lesson."""
        self._check_fitted()
        self._directory.rollback(to)
        self._refresh()
        return self

    def info(self) -> ModelInfo:
        """What the model is: classes, history of lessons, method, threshold."""
        self._check_fitted()
        return self._directory.about()

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
        self._directory = ModelDirectory(Path(self._home.name) / "model")
        fill(self._directory.path)
        self._refresh()

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


def _reading(labels: str | Path | None, nested: bool) -> FolderOptions:
    return FolderOptions(None if labels is None else str(labels), nested)


def _are_paths(X: Any) -> bool:
    """Whether these are files or a folder, and not images."""
    return isinstance(X, PATHS) or (isinstance(X, list | tuple) and bool(X) and all(isinstance(x, PATHS) for x in X))


def _listing(files: list[str], names: list[str]) -> dict[str, list[str]]:
    if len(files) != len(names):
        raise EtagError(f"there are {len(files)} files, but {len(names)} labels: pass one label per file.")
    by_class: dict[str, list[str]] = {str(name): [] for name in distinct(names)}
    for file, name in zip(files, names, strict=True):
        by_class[name].append(file)
    return by_class


def _check_names(names: Sequence[Name], known: Sequence[Name], update: bool) -> None:
    """Raise an error for new classes in an update, and for known ones otherwise."""
    if update:
        if unknown := [name for name in names if name not in known]:
            raise EtagError(f"update is for known classes, but these are new: {', '.join(map(repr, unknown))}.")
    elif again := [name for name in names if name in known]:
        raise EtagError(
            f"these classes are known already: {', '.join(map(repr, again))}; `update` adds images to them."
        )
