"""Reading run directories: every file is checked before anything is drawn from it."""

import os
import re
import warnings
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from PIL import Image
from pydantic import AfterValidator, AwareDatetime, BaseModel, Field, ValidationError, model_validator

from etag.core.errors import EtagError
from etag.core.options import file_error
from etag.core.reading import read_limited, read_text
from etag.evaluation.metrics import METRICS, accuracy_after_each_task, stored_summary
from etag.experiments import yaml_files

MAX_METRICS, MAX_CONFIG, MAX_STEPS, MAX_IMAGE = 1 << 26, 1 << 20, 1 << 28, 1 << 24  # bytes of the files of a run


def _measured(value: float) -> float:
    """An accuracy, or another number of that size; NaN where there is nothing to measure."""
    if abs(value) > 1000:
        raise ValueError("this is no fraction of 1")
    return value


Name = Annotated[str, Field(min_length=1, max_length=200)]
Sentence = Annotated[str, Field(max_length=10_000)]
Count = Annotated[int, Field(ge=0, lt=2**53)]  # larger ones cannot be drawn exactly
PositiveCount = Annotated[int, Field(gt=0, lt=2**53)]
Fraction = Annotated[float, AfterValidator(_measured)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
Loss = Annotated[float, Field(ge=-1e30, le=1e30)]
AccuracyRows = list[list[Fraction | None]]  # `null` above the diagonal: those tasks came later
Tasks = Annotated[list[Count], Field(min_length=1)]  # new classes of each task


class Metrics(BaseModel):
    """The content of `metrics.json`: everything that was measured in one finished run."""

    method: Name
    data: Name
    split: Name
    seed: Count
    accuracy_matrix: AccuracyRows
    task_aware_matrix: AccuracyRows
    classes_per_task: Tasks
    classes_in_task: list[PositiveCount] = Field(default_factory=list)  # new or not; empty: the new ones
    class_names: Annotated[list[Sentence], Field(max_length=2**16)]
    stored_values: dict[str, Fraction] = Field(default_factory=dict)  # those of METRICS that the file has, by name
    step_accuracy_weighted: list[Fraction]
    step_accuracy_plain: list[Fraction]
    train_seconds: list[Seconds]
    test_seconds: list[Seconds]
    parameters: Count
    parameters_by_part: dict[Name, Count] = Field(max_length=100)
    stored_bytes: Count
    stored_bytes_by_part: dict[Name, Count] = Field(max_length=100)
    confusion: list[list[Count]]
    versions: dict[Name, Name] = Field(max_length=100)
    machine: Sentence
    precision: Name = "32-true"  # files of earlier versions do not say it: all were computed in float32
    remarks: dict[Name, Sentence] = Field(default_factory=dict, max_length=100)
    date: AwareDatetime

    @model_validator(mode="before")
    @classmethod
    def _gather_values(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        values = {metric.name: content[metric.name] for metric in METRICS if metric.name in content}
        return content | {"stored_values": values}

    @model_validator(mode="after")
    def _check_shapes(self) -> Self:
        for name in ("accuracy_matrix", "task_aware_matrix"):
            rows = getattr(self, name)
            _check_square(name, rows, self.tasks)
            if any(None in row[: step + 1] for step, row in enumerate(rows)):
                raise ValueError(f"{name} lacks a number on or below its diagonal")
        _check_square("confusion", self.confusion, self.classes)
        optional = ("classes_in_task",) if self.classes_in_task else ()
        for name in (*optional, "step_accuracy_weighted", "step_accuracy_plain", "train_seconds", "test_seconds"):
            if len(getattr(self, name)) != self.tasks:
                raise ValueError(f"{name} must have one value for each of the {self.tasks} tasks")
        if len(self.class_names) < self.classes:
            raise ValueError(f"class_names must name all {self.classes} classes")
        return self

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self.classes_per_task)

    @property
    def classes(self) -> int:
        """Number of classes after the last task."""
        return sum(self.classes_per_task)

    @property
    def seen(self) -> list[int]:
        """Number of classes seen after each task."""
        return list(accumulate(self.classes_per_task))

    @property
    def task_of_class(self) -> list[int]:
        """For each class, the task (from 0) that introduced it."""
        return [task for task, classes in enumerate(self.classes_per_task) for _ in range(classes)]

    @cached_property
    def accuracies(self) -> list[list[float]]:
        """The accuracy matrix as rows that end at the diagonal."""
        return _known(self.accuracy_matrix)

    @cached_property
    def values(self) -> dict[str, float]:
        """The value of every metric, by name; computed from the accuracy matrix where the file lacks it."""
        return stored_summary(vars(self) | self.stored_values)

    @cached_property
    def step_accuracy_task_aware(self) -> list[float]:
        """Weighted accuracy after each task where the task of every image is known."""
        sizes = self.classes_in_task or self.classes_per_task
        return accuracy_after_each_task(_known(self.task_aware_matrix), sizes, weighted=True)


class LoggedStep(BaseModel):
    """One line of `steps.jsonl`; steps count from 1 in every phase of every task."""

    task: Count
    phase: Name
    step: Count
    terms: dict[Name, Loss] = Field(max_length=100)


@dataclass(frozen=True)
class RunRecord:
    """The content of one run directory."""

    path: Path
    metrics: Metrics
    config: str  # YAML as written; empty if there is none
    steps: list[LoggedStep]
    generated: dict[int, bytes]  # by task (from 1): images that the generator produced after it, as one PNG

    @cached_property
    def options(self) -> dict[str, Any]:
        """Its configuration; empty if that cannot be read."""
        try:
            return yaml_files.parse_mapping(self.config, str(self.path))
        except EtagError:
            return {}

    @property
    def is_pretrained(self) -> bool:
        """Whether its backbone started from given weights, as far as its configuration says."""
        model = self.options.get("model")
        return isinstance(model, dict) and model.get("weights") is not None


def read_run(path: Path, logs: bool = True) -> RunRecord:
    """Read a finished run. Only `metrics.json` must exist; without `logs`, only it and the configuration are read."""
    file = path / "metrics.json"
    if not os.path.lexists(file):
        raise EtagError(f"'{path}' holds no finished run: {file} is missing.")
    metrics = _parse(Metrics, _text(file, MAX_METRICS), file)
    config = _text(path / "config.yaml", MAX_CONFIG)
    if not logs:
        return RunRecord(path, metrics, config, [], {})
    generated = _read_generated(path / "generated", metrics.tasks)
    return RunRecord(path, metrics, config, _read_steps(path / "steps.jsonl"), generated)


def _read_generated(folder: Path, tasks: int) -> dict[int, bytes]:
    images: dict[int, bytes] = {}
    for task, path in list(task_files(folder, "png").items())[:tasks]:
        data = read_limited(path, MAX_IMAGE)
        try:
            with warnings.catch_warnings(action="error"), Image.open(BytesIO(data), formats=["PNG"]) as image:
                if not all(image.size):
                    raise ValueError("there is nothing in it")
                image.verify()
        except Exception as error:  # decoders raise anything
            raise EtagError(f"{path} is not a readable PNG image: remove it, or repeat the run.") from error
        images[task] = data
    return images


def task_files(folder: Path, ending: str) -> dict[int, Path]:
    """The files task-001.ENDING, task-002.ENDING, ... of a folder, by the number of the task (from 1)."""
    named = ((re.fullmatch(r"task-(\d{1,9})", file.stem), file) for file in folder.glob(f"task-*.{ending}"))
    return dict(sorted((int(match[1]), file) for match, file in named if match))


def _read_steps(path: Path) -> list[LoggedStep]:
    steps = []
    for line in _text(path, MAX_STEPS).splitlines():
        try:
            steps.append(LoggedStep.model_validate_json(line))
        except ValidationError as error:
            if error.errors()[0]["type"] != "json_invalid":  # a run that was killed may leave half a line: skip it
                raise file_error(error, str(path)) from error
    return steps


def _text(path: Path, limit: int) -> str:
    """The text of a file; empty if there is none."""
    return read_text(path, limit) if os.path.lexists(path) else ""


R = TypeVar("R", bound=BaseModel)


def _parse(kind: type[R], text: str, path: Path) -> R:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise file_error(error, str(path)) from error


def _check_square(name: str, rows: list[list[float | None]] | list[list[int]], size: int) -> None:
    if len(rows) != size or any(len(row) != size for row in rows):
        raise ValueError(f"{name} must have {size} rows of {size} values")


def _known(rows: AccuracyRows) -> list[list[float]]:
    return [[value for value in row[: step + 1] if value is not None] for step, row in enumerate(rows)]
