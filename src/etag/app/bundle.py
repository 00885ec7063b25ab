"""A bundle: the directory that a practitioner keeps. It holds what predicts and, apart from it, what learns on.

`current` names the version in force. A version is put together aside and moved into place whole; only then is it
named. So whatever happens meanwhile, the bundle predicts as it did before or as it does after.
"""

import json
import os
import shutil
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from etag.core.errors import EtagError
from etag.core.files import checksum, locked, write_atomically
from etag.core.outputs import Outputs, Predictor
from etag.core.random import Placement
from etag.data.preprocess import Preprocess
from etag.experiments.config import RunConfig, validate
from etag.experiments.store import UNREADABLE, create_method, fill, tensors
from etag.methods.base import Method

FORMAT = 1
KEPT_VERSIONS = 3
OPEN_END = 2**31  # classes to come: nobody knows how many
Name = Hashable  # of a class: text, a number, or a tuple of these


@dataclass(frozen=True)
class Lesson:
    """What one call to learn has done."""

    classes: tuple[Name, ...]
    images: int
    held_out: int
    accuracy: float | None  # on the held-out images, all classes known then competing
    seconds: float
    date: str
    kind: str = "learn"  # or update, forget


@dataclass(frozen=True)
class About:
    """All that must be known of a version beside its tensors."""

    config: RunConfig
    preprocess: Preprocess
    channels: int
    task_sizes: tuple[int, ...]
    classes: tuple[Name, ...]
    temperature: float = 1.0
    threshold: float = 0.0  # below this probability the answer is "none of these", if that is asked for
    history: tuple[Lesson, ...] = field(default=())

    def plain(self) -> dict[str, Any]:
        """As it is written to disk."""
        content = {key: getattr(self, key) for key in ("channels", "task_sizes", "temperature", "threshold")}
        lessons = [asdict(lesson) | {"classes": list(map(written_name, lesson.classes))} for lesson in self.history]
        return content | {
            "config": self.config.plain(),
            "preprocess": asdict(self.preprocess),
            "classes": list(map(written_name, self.classes)),
            "history": lessons,
        }

    @classmethod
    def from_plain(cls, content: dict[str, Any]) -> Self:
        """The other way."""
        lessons = [
            Lesson(**(lesson | {"classes": tuple(map(_read, lesson["classes"]))})) for lesson in content["history"]
        ]
        return cls(
            config=validate(content["config"]),
            preprocess=Preprocess.from_plain(content["preprocess"]),
            channels=content["channels"],
            task_sizes=tuple(content["task_sizes"]),
            classes=tuple(map(_read, content["classes"])),
            temperature=content["temperature"],
            threshold=content["threshold"],
            history=tuple(lessons),
        )


def written_name(name: Name) -> Any:
    """A class's name in JSON, which has no tuples."""
    if isinstance(name, tuple):
        return {"tuple": [written_name(part) for part in name]}
    if name is None or isinstance(name, str | bool | int | float):
        return name
    raise EtagError(f"the class {name!r} cannot be saved: names are text, numbers, or tuples of these.")


def _read(written: Any) -> Name:
    return tuple(map(_read, written["tuple"])) if isinstance(written, dict) else written


def new_method(about: About, placement: Placement, learns: bool = True) -> Method:
    """The networks of a version, not filled yet."""
    method = create_method(
        about.config, placement, about.preprocess, channels=about.channels, classes=OPEN_END, learns=learns
    )
    method.rebuild(about.task_sizes)
    return method


class Classifier(nn.Module):
    """What predicts: from network inputs to calibrated probabilities."""

    def __init__(self, solver: nn.Module, predictor: Predictor, temperature: float) -> None:
        super().__init__()
        self.solver, self.predictor = solver, predictor
        self.register_buffer("temperature", torch.tensor(temperature))

    temperature: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        """One row an image, one column a class."""
        return (self.scores(inputs) / self.temperature).softmax(1)

    def scores(self, inputs: Tensor) -> Tensor:
        """What the probabilities are made of: logarithms, up to a constant a row."""
        outputs: Outputs = self.solver(inputs, self.predictor.need)
        return logarithmic(self.predictor, self.predictor(outputs))


def logarithmic(predictor: Predictor, scores: Tensor) -> Tensor:
    """A predictor's scores as logarithms of probabilities, up to a constant a row."""
    return scores.clamp(min=torch.finfo(scores.dtype).tiny).log() if predictor.probabilities else scores


class Bundle:
    """A bundle directory."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._current, self._versions = self.path / "current", self.path / "versions"
        self.work = self.path / "work"  # of a learning that is under way

    def exists(self) -> bool:
        """Whether there is a version to predict with."""
        return self._current.is_file()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes it meanwhile. It is made if it is not there."""
        if self.path.exists() and not self._versions.is_dir() and (self.path.is_file() or any(self.path.iterdir())):
            raise EtagError(f"'{self.path}' exists and is no bundle: choose another directory.")
        begun = self._versions.is_dir()
        try:
            self._versions.mkdir(parents=True, exist_ok=True)
            (self.path / ".lock").touch()
        except OSError as error:
            raise EtagError(f"the bundle '{self.path}' cannot be written: {error.strerror}.") from error
        try:
            with locked(self.path / ".lock", f"another process changes '{self.path}': wait for it."):
                yield
        finally:
            if not begun and not self.exists() and not self.work.exists():
                shutil.rmtree(self.path, ignore_errors=True)  # nothing came of it

    # -- versions ---------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The number of the version in force."""
        try:
            return int(self._current.read_text())
        except (OSError, ValueError) as error:
            raise EtagError(f"'{self.path}' is no bundle: make one with `etag learn {self.path} IMAGES`.") from error

    @property
    def versions(self) -> list[int]:
        """The versions that are there, oldest first."""
        return sorted(int(path.name) for path in self._versions.iterdir() if path.name.isdigit())

    def rollback(self) -> int:
        """Go back to the version before the one in force; its number."""
        with self.locked():
            earlier = [number for number in self.versions if number < self.version]
            if not earlier:
                raise EtagError(f"'{self.path}' has no version before {self.version} to go back to.")
            write_atomically(self._current, str(earlier[-1]))
            self.clear_work()  # it was learning on from what is given up
            return earlier[-1]

    def clear_work(self) -> None:
        """Forget a lesson that was begun."""
        shutil.rmtree(self.work, ignore_errors=True)

    def write(self, method: Method, about: About) -> None:
        """Add a version and let it be in force. What was begun and not finished goes, and so do old versions."""
        number = max([0, *self.versions]) + 1
        aside, place = self._versions / f"{number}.part", self._versions / str(number)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        parts: dict[str, dict[str, Tensor]] = {"predictor": {}, "learner": {}}
        for name, value in tensors(method).items():
            parts["predictor" if _answers(method, name) else "learner"][name] = value.contiguous().cpu()
        files = {f"{part}.safetensors": save(values) for part, values in parts.items()}
        for file, data in files.items():
            write_atomically(aside / file, data)
        sums = {file: checksum(data) for file, data in files.items()}
        write_atomically(
            aside / "about.json", json.dumps({"format": FORMAT, "checksums": sums} | about.plain(), indent=1)
        )
        os.replace(aside, place)
        write_atomically(self._current, str(number))
        self.drop_versions(KEPT_VERSIONS)
        self.clear_work()

    def drop_versions(self, kept: int = 1) -> None:
        """Remove all versions but the newest."""
        for old in self.versions[:-kept]:
            shutil.rmtree(self._versions / str(old))

    # -- what is in the version in force ---------------------------------------------------------------------------

    @property
    def _place(self) -> Path:
        return self._versions / str(self.version)

    def about(self) -> About:
        """What is known of it."""
        return About.from_plain(self._content())

    def _content(self) -> dict[str, Any]:
        with self._readable():
            content: dict[str, Any] = json.loads((self._place / "about.json").read_text())
            if content["format"] > FORMAT:
                raise EtagError(
                    f"the bundle '{self.path}' was made by a newer version of etag (its format is "
                    f"{content['format']}, this one reads {FORMAT}): update etag."
                )
            return content

    def classifier(self, placement: Placement | None = None) -> tuple[Classifier, About]:
        """What predicts. Nothing of what learns is read or built."""
        about = self.about()
        method = new_method(about, placement or Placement(), learns=False)
        with self._readable():
            fill(method, self._tensors("predictor.safetensors"), method.answering)
        return Classifier(method.solver, method.predictor(), about.temperature).eval(), about

    def learner(self, placement: Placement | None = None) -> tuple[Method, About]:
        """What learns on."""
        about = self.about()
        method = new_method(about, placement or Placement())
        if not (self._place / "learner.safetensors").is_file():
            raise EtagError(
                f"the learner part of '{self.path}' was removed: it predicts, but learns no more. Begin a new bundle."
            )
        with self._readable():
            fill(method, self._tensors("predictor.safetensors", "learner.safetensors"))
        return method, about

    def sizes(self) -> dict[str, int]:
        """Bytes on disk by part, of the version in force."""
        return {path.name: path.stat().st_size for path in sorted(self._place.iterdir())}

    def _tensors(self, *files: str) -> dict[str, Tensor]:
        sums: dict[str, str] = self._content()["checksums"]
        values: dict[str, Tensor] = {}
        for file in files:
            data = (self._place / file).read_bytes()
            if checksum(data) != sums[file]:
                raise ValueError(f"{file} is damaged")
            values |= load(data)
        return values

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except UNREADABLE as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise EtagError(f"the bundle '{self.path}' cannot be read: {reason}.") from error


def _answers(method: Method, name: str) -> bool:
    """Whether a tensor is needed to predict."""
    return name.partition(".")[0] in method.answering and not name.startswith("solver.auxiliaries.")


def learned_on(about: About, lesson: Lesson, **changes: Any) -> About:
    """What is known after another lesson."""
    return replace(about, history=(*about.history, lesson), **changes)
