"""A version of a model as it is read from disk. What is read is not trusted: it cannot run code, and is checked.

Nothing here imports a method: `etag predict` and `etag info` need none.
"""

import json
import math
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import torch
from pydantic import BeforeValidator, Field, PlainSerializer, TypeAdapter, ValidationError
from torch import Tensor, nn

from etag.core.errors import EtagError
from etag.core.evaluation import Evaluation
from etag.core.files import checksum, read_file
from etag.core.random import CPU, Placement
from etag.data.preprocess import Preprocess
from etag.learner.tensors import UNREADABLE, TensorFiles
from etag.models.classifier import Classifier

if TYPE_CHECKING:
    from etag.learner.config import LearnerConfig
    from etag.methods.base import AnyMethod

FORMAT = 3
REJECTED = 0.05  # share of images of known classes that a calibrated threshold rejects as unknown
Name = Hashable  # of a class: text, a number, or a tuple of these


def name_to_json(name: Name) -> Any:
    """A class name as a JSON value; JSON has no tuples."""
    if isinstance(name, tuple):
        return {"tuple": [name_to_json(part) for part in name]}
    if name is None or isinstance(name, str | bool | int | float):
        return name
    raise EtagError(f"the class {name!r} cannot be saved: names are text, numbers, or tuples of these.")


def _name(value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("tuple"), list):
        return tuple(map(_name, value["tuple"]))
    if isinstance(value, dict | list):
        raise ValueError("a class name is text, a number, or a tuple of these")
    return value


SavedName = Annotated[Name, BeforeValidator(_name), PlainSerializer(name_to_json)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True)
class Lesson:
    """One change of a model: a task learned, known classes updated, or a class forgotten."""

    kind: str  # learn, update, forget or rename
    classes: tuple[SavedName, ...]
    images: int
    seconds: float  # of training
    test_seconds: float
    date: str
    evaluation: Evaluation | None = None
    threshold: Finite | None = None  # as this lesson's held-out images alone would set it


@dataclass(frozen=True)
class ModelInfo:
    """What about.json says of a version: everything except the tensors."""

    config: dict[str, Any]  # of the learner, as JSON values: validated only when it learns
    preprocess: Preprocess
    channels: Annotated[int, Field(gt=0)]
    task_sizes: tuple[int, ...] = ()
    classes: tuple[SavedName, ...] = ()
    expected_classes: int | None = None  # how many there will be in all; None where nobody knows
    temperature: Annotated[Finite, Field(gt=0)] = 1.0
    threshold: Finite | None = None  # less familiar images are of no known class; None: no image is rejected
    threshold_chosen: bool = False  # set by hand: lessons leave it as it is
    history: tuple[Lesson, ...] = ()
    parent: int | None = None  # the version it was learned from
    keep_versions: Annotated[int, Field(gt=0)] = 1  # how many were to be stored when it was saved, this one included
    pinned: bool = False  # the version after a run's last task; never removed once the run has its metrics.json
    code: tuple[str, ...] = ()  # plug-ins that its networks come from: named for people, never loaded

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.config["method"]["name"])

    def learner_config(self) -> "LearnerConfig":
        """The validated configuration of the learner."""
        from etag.learner.config import LearnerConfig

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
        # fields with a default may be missing: a model may be older than they are
        info = _ABOUT.validate_python({name: values[name] for name in cls.__dataclass_fields__ if name in values})
        if len(set(info.classes)) < len(info.classes):
            raise ValueError("a class name occurs twice")
        if sum(info.task_sizes) != len(info.classes):
            raise ValueError(f"it has {len(info.classes)} class names, but {sum(info.task_sizes)} classes in its tasks")
        info.preprocess.check(info.channels)
        return info


_ABOUT = TypeAdapter(ModelInfo)


@dataclass(frozen=True)
class SavedVersion:
    """One version of a model. Its about.json is read once, so that nothing of another version can mix with it."""

    path: Path  # of the model directory
    number: int
    content: dict[str, Any]  # of about.json

    @classmethod
    def read(cls, path: Path, number: int) -> "SavedVersion":
        """Read about.json of a version."""
        version = cls(path, number, {})
        with version._readable():
            content: dict[str, Any] = json.loads(read_file(path / "versions" / str(number) / "about.json"))
            if content["format"] != FORMAT:
                advice = "update etag" if int(content["format"]) > FORMAT else "learn the classes again with this etag"
                raise EtagError(
                    f"the model '{path}' has format {content['format']}, and this version of etag reads "
                    f"format {FORMAT}: {advice}."
                )
            if content["checksum"] != seal(content)["checksum"]:
                raise ValueError("its about.json is damaged")
            return cls(path, number, content)

    @cached_property
    def info(self) -> ModelInfo:
        """Everything about the version except its tensors."""
        with self._readable():
            return ModelInfo.from_json(self.content)

    @property
    def tensor_names(self) -> set[str]:
        """The tensor files that it uses."""
        with self._readable():
            return {str(name) for part in self.content["tensors"].values() for name in part.values()}

    @property
    def backbone_file(self) -> Path:
        """The file of its backbone's weights."""
        with self._readable():
            return self.files.path(self.content["tensors"]["classifier"]["backbone"])

    @property
    def measures_familiarity(self) -> bool:
        """Whether class statistics tell how familiar an image is; if not, the highest probability does."""
        with self._readable():
            return self.content["structure"].get("familiarity") is not None

    def sizes(self) -> dict[str, int]:
        """Bytes on disk: what predicts, and what only learning needs."""
        with self._readable():
            return {
                part: sum(self.files.path(name).stat().st_size for name in files.values())
                for part, files in self.content["tensors"].items()
            }

    def classes_of_one_image(self) -> list[Name]:
        """The classes whose stored sum of features is that of a single image; none if no such sums are stored."""
        with self._readable():
            if "statistics" not in (names := self.content["tensors"]["learner"]):
                return []
            counts = self._tensors(names["statistics"])["count"].tolist()
            return [name for name, count in zip(self.info.classes, counts, strict=True) if count == 1]

    def load_classifier(self, device: torch.device = CPU) -> tuple[Classifier, ModelInfo]:
        """What predicts, in evaluation mode. No method is built, nothing of the learner is read."""
        info = self.info
        with self._readable():
            classifier = Classifier.without_weights(self.content["structure"])
            self._fill_classifier(classifier, assign=True)
            if classifier.familiarity is not None:
                classifier.familiarity.check(len(info.classes))
            outputs = classifier.predict(torch.zeros(1, classifier.backbone.output_size))[0].shape[1]
            if outputs < len(info.classes):  # there may be more: of classes that are still to come
                raise ValueError(f"it has {len(info.classes)} class names, but {outputs} outputs")
            if not (classifier.temperature > 0 and math.isfinite(classifier.temperature)):
                raise ValueError(f"its temperature is {classifier.temperature}")
            return classifier.to(device).requires_grad_(False).eval(), info

    def load_method(self, placement: Placement | None = None) -> "tuple[AnyMethod, ModelInfo]":
        """The method as it was after its last lesson, ready to learn more."""
        from etag.learner.config import UNKNOWN_COUNT, create_method

        info = self.info
        with self._readable():
            try:
                config = info.learner_config()
            except EtagError as error:  # the name of a method or backbone is unknown
                raise EtagError(f"the model '{self.path}' cannot be read: {error}{self._missing_code}") from error
            method = create_method(
                config,
                placement or Placement(),
                info.preprocess,
                channels=info.channels,
                classes=info.expected_classes or UNKNOWN_COUNT,
            )
            method.build_after(info.task_sizes)
            self._fill(method)
        return method, info

    def check(self) -> None:
        """Raise an error unless the version is complete and undamaged."""
        self.load_classifier()
        with self._readable():
            for name in self.tensor_names:
                self._tensors(name)

    def _fill(self, method: "AnyMethod") -> None:
        """Load the saved tensors into a method of the same structure."""
        classifier, names = method.classifier(), self.content["tensors"]["learner"]
        needed = learning_tensors(method, classifier)
        if missing := needed.keys() - names.keys():
            raise EtagError(
                f"'{self.path}' can predict but not learn: `etag models strip` removed its "
                f"{', '.join(sorted(missing))}. Start a new model."
            )
        self._fill_classifier(classifier)
        for role, part in method.parts.items():
            if role in names:
                own = self._tensors(names[role])
                shared = {name: value for name, value in part.state_dict().items() if name not in needed[role]}
                part.load_state_dict(shared | own)
            part.eval()

    def _fill_classifier(self, classifier: Classifier, assign: bool = False) -> None:
        names = self.content["tensors"]["classifier"]
        for name, part in classifier.saved_parts.items():
            types = {key: value.dtype for key, value in part.state_dict().items()}
            tensors = self._tensors(names[name])
            for key in tensors.keys() & types.keys():
                tensors[key] = tensors[key].to(types[key])
            part.load_state_dict(tensors, assign=assign)
        for parameter in classifier.parameters():
            if parameter.ndim == 4:  # the layout of training, so that scores are equal to the last bit
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)

    @property
    def files(self) -> TensorFiles:
        """The tensor files of all versions."""
        return TensorFiles(self.path / "tensors")

    def _tensors(self, name: str) -> dict[str, Tensor]:
        tensors = self.files.read(name)
        for key, value in tensors.items():
            if value.is_floating_point() and not value.isfinite().all():
                raise ValueError(f"the tensor '{key}' contains NaN or infinity")
        return tensors

    @property
    def _missing_code(self) -> str:
        """What to do where a name is unknown because the model needs a plug-in."""
        code = self.content.get("code")
        if not isinstance(code, list) or not code:
            return ""
        names = ", ".join(map(str, code))
        return f" It needs code that is not part of etag ({names}): if you trust that code, add --plugin FILE."

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Turn whatever damaged or hostile files raise into one sentence."""
        try:
            yield
        except UNREADABLE as error:
            reason = str(error).splitlines()[0].rstrip(":.") if str(error) else type(error).__name__
            if isinstance(error, ValidationError):
                first = error.errors()[0]
                reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise EtagError(f"the model '{self.path}' cannot be read: {reason}.{self._missing_code}") from error


def seal(content: dict[str, Any]) -> dict[str, Any]:
    """The content of an about.json with its checksum, which tells damage."""
    rest = {key: value for key, value in content.items() if key != "checksum"}
    return rest | {"checksum": checksum(json.dumps(rest, sort_keys=True).encode())}


def learning_tensors(method: "AnyMethod", classifier: Classifier) -> dict[str, dict[str, Tensor]]:
    """By role, the tensors of a method's parts that are not in its classifier; roles without any are left out."""
    shared = {id(module) for module in classifier.modules()}
    tensors = {}
    for role, part in method.parts.items():
        outside = _names_outside(part, shared)
        values = {name: value for name, value in part.state_dict().items() if name in outside}
        if values or role == "optimizer_state":  # also if empty, as it is in a method that was just built
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
