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
    """Kendall's tau-b between two rankings of methods; how much it varies over seeds, and which methods there are."""

    tau: float  # of the means over seeds
    methods: int
    by_seed: Spread | None  # tau of every seed that all methods have, if there are several
    seeds: int  # that all methods have
    over_methods: tuple[float, float]  # 95 % of resamples of the methods

    @property
    def over_seeds(self) -> tuple[float, float] | None:
        """Student's 95 % interval of the mean tau of one seed."""
        if self.by_seed is None:
            return None
        margin = _margin(self.by_seed, self.seeds)
        return None if margin is None else (max(-1.0, self.by_seed.mean - margin), min(1.0, self.by_seed.mean + margin))


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


def agreement(ours: Sequence[Mapping[int, float]], theirs: Sequence[float]) -> Agreement:
    """Agreement of our means with the paper's values; `ours` has the values of each method by seed."""
    means = [fmean(values.values()) for values in ours]
    shared = sorted(set.intersection(*(set(values) for values in ours)))
    taus = [kendall([values[seed] for values in ours], theirs) for seed in shared]
    by_seed = Spread.of(taus) if len(shared) > 1 else None
    return Agreement(kendall(means, theirs), len(theirs), by_seed, len(shared), _over_methods(means, theirs))


def _over_methods(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """What tau could have been with other methods of the same kind."""
    rng = np.random.default_rng(SEED)
    pairs = np.array([ours, theirs]).T
    draws = (pairs[rng.integers(len(pairs), size=len(pairs))].T for _ in range(RESAMPLES))
    low, high = np.nanquantile([kendall(*draw) for draw in draws], [1 - UPPER, UPPER])
    return float(low), float(high)


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Paired | None:
    """Ours minus theirs, seed by seed; both by seed. None if they share no seed."""
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    difference = Spread.of([ours[seed] - theirs[seed] for seed in seeds])
    return Paired(seeds, difference, _margin(difference, len(seeds)))


def _margin(spread: Spread, count: int) -> float | None:
    """Half of Student's 95 % interval of a mean of this many values; None for a single one."""
    if spread.deviation is None:
        return None
    return float(stats.t.ppf(UPPER, count - 1)) * spread.deviation / math.sqrt(count)
