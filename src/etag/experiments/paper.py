"""The numbers that the paper prints, to show beside ours."""

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from etag.experiments import yaml_files

FILE = Path(__file__).with_name("paper.yaml")
DATA_SETS, TASKS = ("cifar100", "imagenet-sub"), (5, 10, 25)


class _Published(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Accuracy(_Published):
    """An average incremental accuracy, in percent."""

    A: float
    A_std: float | None = None


class Result(Accuracy):
    """A cell of Table 1: accuracy and forgetting, in percent."""

    F: float
    F_std: float | None = None


class DoubtfulValue(_Published):
    """A number of Table 1 that is printed but cannot be right."""

    column: str
    method: str
    metric: Literal["A", "F"]
    note: str


class Ablation(_Published):
    """A column of Table 2: generation (samples, naive or task-oriented features), distillation (naive or of
    embeddings), whether there are a self-supervised task and a data buffer, and the accuracy in percent."""

    GE: Literal["none", "S", "N", "T"]
    KD: Literal["N", "E"]
    SS: bool
    DB: bool
    A: float


class Seconds(_Published):
    """A column of the table of times, in seconds."""

    train: float
    test: float


class Paper(_Published):
    """All tables of the paper; methods have our names and the paper's order."""

    table1: dict[str, dict[str, Result]]
    doubtful: list[DoubtfulValue]
    ablation: dict[str, Ablation]
    self_supervised: dict[str, float]
    time: dict[str, Seconds]
    generative: dict[str, Accuracy]

    @property
    def methods(self) -> list[str]:
        """The methods of Table 1, one per row."""
        return list(next(iter(self.table1.values())))

    def doubt(self, column: str, method: str, metric: str) -> str | None:
        """What is wrong with a number of Table 1; None if nothing is."""
        where = (column, method, metric)
        return next((one.note for one in self.doubtful if (one.column, one.method, one.metric) == where), None)


@cache
def published() -> Paper:
    """The content of paper.yaml."""
    return Paper.model_validate(yaml_files.read(FILE))


def column_of(data: str, split: str) -> str | None:
    """The column of Table 1 with this data set and split, such as `cifar100-5`; None if there is none."""
    columns = {(data, f"b50-{tasks}x{50 // tasks}"): f"{data}-{tasks}" for data in DATA_SETS for tasks in TASKS}
    return columns.get((data, split))
