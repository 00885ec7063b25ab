"""Reading run directories: what a run left on disk, checked before anything is drawn from it."""

import json
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError, model_validator

from etag.core.errors import EtagError
from etag.core.options import file_error
from etag.evaluation.metrics import step_accuracies

AccuracyRows = list[list[float | None]]  # `null` above the diagonal: those tasks were not learned yet
Tasks = Annotated[list[NonNegativeInt], Field(min_length=1)]  # classes that each brings


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Metrics(_Record):
    """`metrics.json`: everything that was measured of one finished run."""

    method: str
    data: str
    split: str
    seed: int
    accuracy_matrix: AccuracyRows
    task_aware_matrix: AccuracyRows
    classes_per_task: Tasks
    classes_in_task: list[PositiveInt] = Field(default_factory=list)  # that each shows; none: those that it brings
    class_names: list[str]
    A_weighted: float
    A_plain: float
    F_weighted: float
    F_plain: float
    F_paper: float
    last_accuracy: float
    step_accuracy_weighted: list[float]
    step_accuracy_plain: list[float]
    train_seconds: list[float]
    test_seconds: list[float]
    parameters: int
    parameters_by_part: dict[str, int]
    stored_bytes: int
    stored_bytes_by_part: dict[str, int]
    confusion: list[list[NonNegativeInt]]
    versions: dict[str, str]
    machine: str
    remarks: dict[str, str] = Field(default_factory=dict)
    date: datetime

    @model_validator(mode="after")
    def _check_shapes(self) -> Self:
        for name in ("accuracy_matrix", "task_aware_matrix"):
            _check_square(name, getattr(self, name), self.tasks)
            if any(value is None for row in _lower(getattr(self, name)) for value in row):
                raise ValueError(f"{name} lacks a number on or below its diagonal")
        if self.classes_in_task and len(self.classes_in_task) != self.tasks:
            raise ValueError(f"classes_in_task must have one value for each of the {self.tasks} tasks")
        _check_square("confusion", self.confusion, self.classes)
        for name in ("step_accuracy_weighted", "step_accuracy_plain", "train_seconds", "test_seconds"):
            if len(getattr(self, name)) != self.tasks:
                raise ValueError(f"{name} must have one value for each of the {self.tasks} tasks")
        if len(self.class_names) < self.classes:
            raise ValueError(f"class_names must name all {self.classes} classes")
        return self

    @property
    def tasks(self) -> int:
        """How many tasks were learned."""
        return len(self.classes_per_task)

    @property
    def classes(self) -> int:
        """How many classes were learned."""
        return sum(self.classes_per_task)

    @property
    def seen(self) -> list[int]:
        """Classes known after each task."""
        return list(accumulate(self.classes_per_task))

    @property
    def task_of_class(self) -> list[int]:
        """For each class, the task that brought it."""
        return [task for task, classes in enumerate(self.classes_per_task) for _ in range(classes)]

    @cached_property
    def accuracies(self) -> list[list[float]]:
        """The accuracy matrix as rows that end at the diagonal."""
        return _known(self.accuracy_matrix)

    @cached_property
    def step_accuracy_task_aware(self) -> list[float]:
        """Weighted accuracy after each task where the task of every image is known."""
        return step_accuracies(
            _known(self.task_aware_matrix), self.classes_in_task or self.classes_per_task, weighted=True
        )


class Embedding(_Record):
    """`embedding.json`: test features in two dimensions."""

    points: list[tuple[float, float]]
    labels: list[NonNegativeInt]

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if len(self.points) != len(self.labels):
            raise ValueError(f"there are {len(self.points)} points but {len(self.labels)} labels")
        return self


class Step(_Record):
    """One line of `steps.jsonl`; steps count from 1 in every phase of every task."""

    task: int
    phase: str
    step: int
    terms: dict[str, float]


@dataclass(frozen=True)
class RunRecord:
    """One run directory, read."""

    path: Path
    metrics: Metrics
    config: str  # YAML as written; empty if there is none
    embedding: Embedding | None
    steps: list[Step]
    made: dict[int, bytes]  # pictures of what a generator makes after a task, as PNG


def read_run(path: Path, logs: bool = True) -> RunRecord:
    """Read a finished run; only `metrics.json` must be there. Without `logs`, just that and the configuration."""
    metrics_file = path / "metrics.json"
    metrics_text = _text(metrics_file)
    if metrics_text is None:
        raise EtagError(f"'{path}' holds no finished run: {metrics_file} is missing.")
    metrics = _parse(Metrics, metrics_text, metrics_file)
    config = _text(path / "config.yaml") or ""
    if not logs:
        return RunRecord(path, metrics, config, None, [], {})
    return RunRecord(
        path,
        metrics,
        config,
        _read_embedding(path / "embedding.json", metrics),
        _read_steps(path / "steps.jsonl"),
        {int(file.stem.removeprefix("task-")): file.read_bytes() for file in sorted(path.glob("made/task-*.png"))},
    )


def read_embeddings(run: RunRecord) -> dict[int, Embedding]:
    """Test features after each task, by its number from 1; where only those after the last were kept, these."""
    files = {int(file.stem.rpartition("-")[2]): file for file in sorted(run.path.glob("embedding-[0-9]*.json"))}
    files = files or {run.metrics.tasks: run.path / "embedding.json"}
    found = {task: _read_embedding(file, run.metrics) for task, file in files.items()}
    return {task: embedding for task, embedding in found.items() if embedding is not None}


def _read_embedding(path: Path, metrics: Metrics) -> Embedding | None:
    text = _text(path)
    embedding = None if text is None else _parse(Embedding, text, path)
    if embedding and any(label >= metrics.classes for label in embedding.labels):
        raise EtagError(f"{path} has labels beyond the {metrics.classes} classes of the run.")
    return embedding


def _read_steps(path: Path) -> list[Step]:
    lines = (_text(path) or "").splitlines()
    # a run that was killed leaves a torn line, which must not cost the page
    return [_parse(Step, line, path) for line in lines if _is_json(line)]


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise EtagError(f"{path} cannot be read: {error}.") from error


R = TypeVar("R", bound=_Record)


def _parse(kind: type[R], text: str, path: Path) -> R:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise file_error(error, str(path)) from error


def _check_square(name: str, rows: list[list[float | None]] | list[list[int]], size: int) -> None:
    if len(rows) != size or any(len(row) != size for row in rows):
        raise ValueError(f"{name} must have {size} rows of {size} values")


def _lower(rows: AccuracyRows) -> AccuracyRows:
    return [row[: index + 1] for index, row in enumerate(rows)]


def _known(rows: AccuracyRows) -> list[list[float]]:
    return [[value for value in row if value is not None] for row in _lower(rows)]
