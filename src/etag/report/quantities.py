"""The numbers that pages show of a run: the metrics, and what the run cost."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from etag.core.text import data_size, duration, percent, short_count
from etag.evaluation.metrics import METRICS, Metric
from etag.report.records import Metrics


@dataclass(frozen=True)
class Quantity:
    """One number of a run: how to read it from the run's metrics and how to write it."""

    name: str
    title: str
    definition: str
    read: Callable[[Metrics], float]
    write: Callable[[float], str]
    unit: str = ""
    better: Literal["higher", "lower"] | None = None

    def text(self, metrics: Metrics) -> str:
        """The number of this run, with its unit."""
        return f"{self.write(self.read(metrics))} {self.unit}".rstrip()

    @property
    def heading(self) -> str:
        """The heading of a column of these numbers."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


@dataclass(frozen=True)
class Spread:
    """Mean over seeds and, if there are several, sample standard deviation."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The mean and deviation of these values."""
        # `stdev` refuses values that are not finite
        several = len(values) > 1 and all(map(math.isfinite, values))
        return cls(fmean(values), stdev(values) if several else None)

    def text(self, write: Callable[[float], str]) -> str:
        """The mean, and the deviation if there is one: 60.0 ± 2.0."""
        return write(self.mean) if self.deviation is None else f"{write(self.mean)} ± {write(self.deviation)}"


def _quantity(metric: Metric) -> Quantity:
    return Quantity(
        metric.name,
        metric.title,
        metric.definition,
        lambda m: m.values[metric.name],
        percent,
        metric.unit,
        metric.better,
    )


QUANTITIES = {metric.name: _quantity(metric) for metric in METRICS}
A = QUANTITIES["A_weighted"]
TRAIN_TIME = Quantity(
    "train time", "Training time", "of all tasks together", lambda m: sum(m.train_seconds), duration
)
PARAMETERS = Quantity(
    "parameters", "Parameters", "of all networks at the end of the run", lambda m: m.parameters, short_count
)
STORED_BYTES = Quantity(
    "stored", "Stored", "bytes stored from one task to the next", lambda m: m.stored_bytes, data_size
)
HEADLINE = (A, QUANTITIES["last_accuracy"], QUANTITIES["F_weighted"], TRAIN_TIME, PARAMETERS, STORED_BYTES)
