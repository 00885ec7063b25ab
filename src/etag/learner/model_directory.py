"""The model directory: the one format of saved models. `etag run` ends with one, `etag learn` creates one.

    current                       the number of the current version
    versions/N/about.json         configuration, classes, history, structure, and the names of its tensor files
    tensors/CHECKSUM.safetensors  tensors; versions share files with equal content
    unfinished/                   checkpoints of a task that is being learned

A version has two parts: the classifier (what predicts) and the learner (the rest of the method, to learn more). It is
written completely before `current` names it, so a reader sees the model as it was before or as it is after.
"""

import json
import os
import shutil
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from pydantic import BeforeValidator, PlainSerializer, TypeAdapter
from torch import Tensor, nn

from etag.core.errors import EtagError
from etag.core.evaluation import Evaluation
from etag.core.files import checksum, locked, write_atomically
from etag.core.random import CPU, Placement
from etag.data.preprocess import Preprocess
from etag.learner.config import UNKNOWN_COUNT, LearnerConfig, create_method
from etag.learner.tensors import UNREADABLE, TensorFiles
from etag.methods.base import AnyMethod
from etag.models.classifier import Classifier

FORMAT = 2
VERSIONS = 3  # how many are stored, by default
Name = Hashable  # of a class: text, a number, or a tuple of these


def name_to_json(name: Name) -> Any:
    """A class name as a JSON value; JSON has no tuples."""
    if isinstance(name, tuple):
        return {"tuple": [name_to_json(part) for part in name]}
    if name is None or isinstance(name, str | bool | int | float):
        return name
    raise EtagError(f"the class {name!r} cannot be saved: names are text, numbers, or tuples of these.")


def _name(value: Any) -> Name:
    return tuple(map(_name, value["tuple"])) if isinstance(value, dict) else value


SavedName = Annotated[Name, BeforeValidator(_name), PlainSerializer(name_to_json)]


@dataclass(frozen=True)
class Lesson:
    """One change of a model: a task learned, known classes updated, or a class forgotten."""

    kind: str  # learn, update or forget
    classes: tuple[SavedName, ...]
    images: int
    seconds: float  # of training
    test_seconds: float
    date: str
    evaluation: Evaluation | None = None


@dataclass(frozen=True)
class ModelInfo:
    """What about.json says of a version: everything except the tensors."""

    config: dict[str, Any]  # of the learner, as JSON values: validated only when it learns
    preprocess: Preprocess
    channels: int
    task_sizes: tuple[int, ...] = ()
    classes: tuple[SavedName, ...] = ()
    expected_classes: int | None = None  # how many there will be in all; None where nobody knows
    temperature: float = 1.0
    threshold: float = 0.0  # predictions with a lower probability count as "none of these", on request
    history: tuple[Lesson, ...] = ()
    parent: int | None = None  # the version it was learned from
    pinned: bool = False  # the version after a run's last task; never removed once the run has its metrics.json

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.config["method"]["name"])

    def learner_config(self) -> LearnerConfig:
        """The validated configuration of the learner."""
        return LearnerConfig.from_json(self.config)

    def with_lesson(self, lesson: Lesson, **changes: Any) -> Self:
        """A copy with one more lesson; only the newest evaluation keeps its confusion matrix."""
        earlier = (
            past if past.evaluation is None else replace(past, evaluation=past.evaluation.without_confusion())
            for past in self.history
        )
        return replace(self, history=(*earlier, lesson), **changes)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        values: dict[str, Any] = _ABOUT.dump_python(self, mode="json")
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "ModelInfo":
        """From JSON values; unknown keys are ignored, and a ValueError names what is wrong."""
        return _ABOUT.validate_python({name: values[name] for name in cls.__dataclass_fields__})


_ABOUT = TypeAdapter(ModelInfo)


class ModelDirectory:
    """A model on disk."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._current, self._versions = self.path / "current", self.path / "versions"
        self._tensors = TensorFiles(self.path / "tensors")
        self.unfinished = self.path / "unfinished"  # checkpoints of a task that is being learned

    def exists(self) -> bool:
        """Whether there is a version to predict with."""
        return self._current.is_file()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from changing the model meanwhile; the directory is created if it does not exist."""
        if self.path.exists() and not self._versions.is_dir() and (self.path.is_file() or any(self.path.iterdir())):
            raise EtagError(f"'{self.path}' exists and is not a model directory: choose another directory.")
        existed = self._versions.is_dir()
        try:
            with locked(self.path / ".lock", f"another process is changing '{self.path}': wait until it is done."):
                self._versions.mkdir(exist_ok=True)
                yield
        finally:
            if not existed and not self.exists() and not self.unfinished.exists():
                shutil.rmtree(self.path, ignore_errors=True)  # nothing was learned

    # -- the task that is being learned ------------------------------------------------------------------------------

    def prepare_checkpoint_folder(self, description: Any) -> Path:
        """The folder for checkpoints of a task; checkpoints of a task with another description are deleted."""
        version = self.version if self.exists() else 0
        fingerprint = checksum(json.dumps([version, description], sort_keys=True).encode())
        file = self.unfinished / "task"
        if not file.is_file() or file.read_text() != fingerprint:
            self.clear_unfinished()
            self.unfinished.mkdir(parents=True)
            write_atomically(file, fingerprint)
        return self.unfinished / "checkpoints"

    def clear_unfinished(self) -> None:
        """Delete the checkpoints of an unfinished task."""
        shutil.rmtree(self.unfinished, ignore_errors=True)

    # -- versions ----------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The number of the current version."""
        try:
            return int(self._current.read_text())
        except (OSError, ValueError) as error:
            raise EtagError(
                f"'{self.path}' is not a model directory: `etag learn` creates one, and a finished `etag run` is one."
            ) from error

    @property
    def versions(self) -> list[int]:
        """The numbers of all stored versions, oldest first."""
        return sorted(int(path.name) for path in self._versions.iterdir() if path.name.isdecimal())

    @property
    def _is_finished_run(self) -> bool:
        return (self.path / "metrics.json").is_file()

    def check_no_run(self) -> None:
        """Raise an error if it is the directory of a finished run, whose result is never altered."""
        if self._is_finished_run:
            raise EtagError(
                f"'{self.path}' holds the result of a run, which is never altered: copy the directory without its "
                "metrics.json and config.yaml, and change the copy."
            )

    def save(self, method: AnyMethod, about: ModelInfo, keep: int = VERSIONS) -> int:
        """Add a version and make it current; returns its number. Deletes checkpoints and all but `keep` versions."""
        if about.pinned:
            # a pinned version that is here already was left by a process killed before it wrote `current`
            for number in (number for number in self.versions if self._content(number)["pinned"]):
                shutil.rmtree(self._versions / str(number))
        number = max([0, *self.versions]) + 1
        classifier = method.classifier()
        classifier.temperature = about.temperature
        learning = _learning_tensors(method, classifier)
        parts = {"backbone": classifier.backbone.state_dict(), "rule": classifier.rule.state_dict()}
        content = about.to_json() | {
            "format": FORMAT,
            "parent": self.version if self.exists() else None,
            "structure": classifier.describe(),
            "tensors": {
                "classifier": {name: self._tensors.write(values) for name, values in parts.items()},
                "learner": {role: self._tensors.write(values) for role, values in learning.items()},
            },
        }
        aside = self._versions / f"{number}.part"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        write_atomically(aside / "about.json", json.dumps(content, indent=1))
        os.replace(aside, self._versions / str(number))
        write_atomically(self._current, str(number))
        self.drop_versions(keep)
        self.clear_unfinished()
        return number

    def rollback(self) -> int:
        """Return to the version that the current one was learned from; returns its number."""
        with self.locked():
            parent = self.about().parent
            if parent is None or parent not in self.versions:
                raise EtagError(f"'{self.path}' has no version before {self.version} to return to.")
            write_atomically(self._current, str(parent))
            self.clear_unfinished()  # the checkpoints continue from the version that we leave
            return parent

    def drop_versions(self, keep: int = 1) -> None:
        """Delete all but the newest versions and pinned ones, and tensors that no version uses."""
        for number in self.versions[:-keep]:
            if number != self.version and not (self._is_finished_run and self._content(number)["pinned"]):
                shutil.rmtree(self._versions / str(number))
        used: set[str] = set()
        for number in self.versions:
            used |= {name for part in self._content(number)["tensors"].values() for name in part.values()}
        self._tensors.remove_all_but(used)

    def strip(self) -> None:
        """Delete everything that only learning needs: the model predicts, but learns no more."""
        with self.locked():
            number = self.version
            content = self._content(number)
            if content["pinned"]:
                self.check_no_run()
            content["tensors"] = content["tensors"] | {"learner": {}}
            write_atomically(self._versions / str(number) / "about.json", json.dumps(content, indent=1))
            self.drop_versions()

    # -- reading the current version -----------------------------------------------------------------------------------

    def about(self) -> ModelInfo:
        """Everything about the current version except its tensors."""
        content = self._content(self.version)
        with self._readable():
            return ModelInfo.from_json(content)

    def load_classifier(self, device: torch.device = CPU) -> tuple[Classifier, ModelInfo]:
        """What predicts, in evaluation mode. No method is built, nothing of the learner is read."""
        content = self._content(self.version)
        with self._readable():
            classifier = Classifier.empty(content["structure"])
            self._fill_classifier(classifier, content["tensors"]["classifier"])
            return classifier.to(device).requires_grad_(False).eval(), ModelInfo.from_json(content)

    def load_method(self, placement: Placement | None = None) -> tuple[AnyMethod, ModelInfo]:
        """The method as it was after its last lesson, ready to learn more."""
        content = self._content(self.version)
        with self._readable():
            about = ModelInfo.from_json(content)
            method = create_method(
                about.learner_config(),
                placement or Placement(),
                about.preprocess,
                channels=about.channels,
                classes=about.expected_classes or UNKNOWN_COUNT,
            )
            method.build_after(about.task_sizes)
            self._fill(method, content["tensors"])
        return method, about

    def _fill(self, method: AnyMethod, names: dict[str, dict[str, str]]) -> None:
        """Load the saved tensors into a method of the same structure."""
        classifier = method.classifier()
        needed = _learning_tensors(method, classifier)
        if missing := needed.keys() - names["learner"].keys():
            raise EtagError(
                f"'{self.path}' can predict but not learn: `etag models strip` removed its "
                f"{', '.join(sorted(missing))}. Start a new model."
            )
        self._fill_classifier(classifier, names["classifier"])
        for role, part in method.parts.items():
            if role in names["learner"]:
                own = self._tensors.read(names["learner"][role])
                shared = {name: value for name, value in part.state_dict().items() if name not in needed[role]}
                part.load_state_dict(shared | own)
            part.eval()

    def _fill_classifier(self, classifier: Classifier, names: dict[str, str]) -> None:
        classifier.backbone.load_state_dict(self._tensors.read(names["backbone"]))
        classifier.rule.load_state_dict(self._tensors.read(names["rule"]))

    def sizes(self) -> dict[str, int]:
        """Bytes on disk of the current version: what predicts, and what only learning needs."""
        names = self._content(self.version)["tensors"]
        with self._readable():
            return {
                part: sum(self._tensors.path(name).stat().st_size for name in files.values())
                for part, files in names.items()
            }

    def _content(self, number: int) -> dict[str, Any]:
        with self._readable():
            content: dict[str, Any] = json.loads((self._versions / str(number) / "about.json").read_text())
            if content["format"] != FORMAT:
                advice = "update etag" if content["format"] > FORMAT else "learn the classes again with this etag"
                raise EtagError(
                    f"the model '{self.path}' has format {content['format']}, and this version of etag reads "
                    f"format {FORMAT}: {advice}."
                )
            return content

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except UNREADABLE as error:
            reason = str(error).splitlines()[0].rstrip(":.") if str(error) else type(error).__name__
            raise EtagError(f"the model '{self.path}' cannot be read: {reason}.") from error


def _learning_tensors(method: AnyMethod, classifier: Classifier) -> dict[str, dict[str, Tensor]]:
    """By role, the tensors of a method's parts that are not in its classifier; roles without any are left out."""
    shared = {id(module) for module in classifier.modules()}
    tensors = {}
    for role, part in method.parts.items():
        outside = _names_outside(part, shared)
        values = {name: value for name, value in part.state_dict().items() if name in outside}
        if values or role == "optimizer_state":  # also if empty, as it is in the new method that `_fill` passes
            tensors[role] = values
    return tensors


def _names_outside(part: nn.Module, shared: set[int]) -> set[str]:
    """The names of parameters and buffers whose own module is not among the shared ones."""
    names: set[str] = set()
    for prefix, module in part.named_modules():
        if id(module) not in shared:
            own = (*module._parameters, *module._buffers)
            names |= {f"{prefix}.{name}" if prefix else name for name in own}
    return names
