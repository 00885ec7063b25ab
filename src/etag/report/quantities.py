"""The numbers a page shows of a run: what each is called, what it means, how it is written."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from etag.evaluation.metrics import DEFINITIONS
from etag.report.formats import data_size, duration, percent, short_count
from etag.report.records import Metrics


@dataclass(frozen=True)
class Quantity:
    """One number of a run."""

    name: str
    title: str
    definition: str
    read: Callable[[Metrics], float]
    write: Callable[[float], str]
    unit: str = ""
    best: Literal["highest", "lowest"] | None = None

    def text(self, metrics: Metrics) -> str:
        """The number of this run, with its unit."""
        return f"{self.write(self.read(metrics))} {self.unit}".rstrip()

    @property
    def heading(self) -> str:
        """What stands over a column of these numbers."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


@dataclass(frozen=True)
class Spread:
    """A number over seeds: mean and, if there are several seeds, sample standard deviation."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The mean and deviation of these values."""
        # `stdev` refuses values that are not finite
        several = len(values) > 1 and all(map(math.isfinite, values))
        return cls(fmean(values), stdev(values) if several else None)

    def text(self, write: Callable[[float], str]) -> str:
        """The mean, and the deviation if there is one."""
        return write(self.mean) if self.deviation is None else f"{write(self.mean)} ± {write(self.deviation)}"


def _accuracy(name: str, title: str) -> Quantity:
    return Quantity(name, title, DEFINITIONS[name], lambda m: getattr(m, name), percent, "%", "highest")


def _forgetting(name: str, title: str) -> Quantity:
    return Quantity(name, title, DEFINITIONS[name], lambda m: getattr(m, name), percent, "points", "lowest")


A_WEIGHTED = _accuracy("A_weighted", "Average accuracy A, weighted")
LAST_ACCURACY = _accuracy("last_accuracy", "Last accuracy, weighted")
F_WEIGHTED = _forgetting("F_weighted", "Forgetting F, weighted")
TRAIN_TIME = Quantity("train time", "Training time", "all tasks together", lambda m: sum(m.train_seconds), duration)
TEST_TIME = Quantity(
    "test time", "Test time", "the tests after all tasks together", lambda m: sum(m.test_seconds), duration
)
PARAMETERS = Quantity(
    "parameters", "Parameters", "of all networks at the end of the run", lambda m: m.parameters, short_count
)
STORED_BYTES = Quantity(
    "stored", "Stored", "bytes kept from one task to the next", lambda m: m.stored_bytes, data_size
)

ACCURACY_METRICS = (
    A_WEIGHTED,
    _accuracy("A_plain", "Average accuracy A, plain"),
    LAST_ACCURACY,
    F_WEIGHTED,
    _forgetting("F_plain", "Forgetting F, plain"),
    _forgetting("F_paper", "Forgetting F, as the paper divides"),
)
COSTS = (TRAIN_TIME, TEST_TIME, PARAMETERS, STORED_BYTES)
HEADLINE = (A_WEIGHTED, LAST_ACCURACY, F_WEIGHTED, TRAIN_TIME, PARAMETERS, STORED_BYTES)
