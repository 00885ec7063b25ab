"""Statistics over seeds: means, agreement of two rankings, and paired differences of two methods."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from scipy import stats

RESAMPLES, SEED = 2000, 0
UPPER = 0.975  # of a two-sided 95 % interval


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


@dataclass(frozen=True)
class Agreement:
    """Kendall's tau-b between two rankings, with a 95 % interval over resampled seeds if there are several."""

    tau: float
    methods: int
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Paired:
    """The difference of two methods over the seeds that both have; `margin` is half of its 95 % interval."""

    seeds: list[int]
    difference: Spread
    margin: float | None  # None: fewer than two seeds

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's 95 % interval of the mean difference; None with fewer than two seeds."""
        mean = self.difference.mean
        return None if self.margin is None else (mean - self.margin, mean + self.margin)

    @property
    def above_zero(self) -> bool:
        """Whether the first method is ahead by more than chance: the whole interval lies above zero."""
        return self.interval is not None and self.interval[0] > 0


def kendall(left: Sequence[float], right: Sequence[float]) -> float:
    """Kendall's tau-b of two rankings; NaN where one of them is all ties."""
    return float(stats.kendalltau(left, right).statistic) if len(left) > 1 else math.nan


def agreement(ours: Sequence[Sequence[float]], theirs: Sequence[float]) -> Agreement:
    """Agreement of our means with the paper's values; `ours` has the values of each method over its seeds."""
    tau = kendall([float(np.mean(values)) for values in ours], theirs)
    several = any(len(values) > 1 for values in ours)
    return Agreement(tau, len(theirs), _interval(ours, theirs) if several else None)


def _interval(ours: Sequence[Sequence[float]], theirs: Sequence[float]) -> tuple[float, float]:
    rng = np.random.default_rng(SEED)
    means = [
        np.asarray(values)[rng.integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1) for values in ours
    ]
    taus = [kendall(resampled, theirs) for resampled in np.stack(means, axis=1)]
    low, high = np.nanquantile(taus, [1 - UPPER, UPPER])
    return float(low), float(high)


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Paired | None:
    """Ours minus theirs, seed by seed; both by seed. None if they share no seed."""
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    difference = Spread.of([ours[seed] - theirs[seed] for seed in seeds])
    if difference.deviation is None:
        return Paired(seeds, difference, None)
    quantile = float(stats.t.ppf(UPPER, len(seeds) - 1))
    return Paired(seeds, difference, quantile * difference.deviation / math.sqrt(len(seeds)))
