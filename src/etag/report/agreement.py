"""How far results agree: ranks set against the paper's, and methods against each other seed by seed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from etag.report.quantities import Spread

RESAMPLES, SEED = 2000, 0
SURE = 0.975  # both tails together leave out 5 %
# quantiles of Student's t at 0.975 for 1, 2, … degrees of freedom
T_QUANTILES = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


@dataclass(frozen=True)
class Agreement:
    """Kendall's tau-b between two rankings, and its 95 % interval over resampled seeds where there are several."""

    tau: float
    methods: int
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Paired:
    """A difference over the seeds that two methods share; `margin` is half of its 95 % interval."""

    seeds: list[int]
    difference: Spread
    margin: float | None


def kendall(left: Sequence[float], right: Sequence[float]) -> float:
    """Kendall's tau-b: pairs in the same order minus pairs in the opposite, ties of either side discounted."""
    pairs = np.triu_indices(len(left), k=1)
    x, y = (np.sign(np.subtract.outer(values, values))[pairs] for values in (np.asarray(left), np.asarray(right)))
    untied = math.sqrt(np.count_nonzero(x) * np.count_nonzero(y))
    return float((x * y).sum() / untied) if untied else math.nan


def agreement(ours: Sequence[Sequence[float]], theirs: Sequence[float]) -> Agreement:
    """Of the means of our values, those of each method over its seeds, with one number each."""
    tau = kendall([float(np.mean(values)) for values in ours], theirs)
    several = any(len(values) > 1 for values in ours)
    return Agreement(tau, len(theirs), _interval(ours, theirs) if several else None)


def _interval(ours: Sequence[Sequence[float]], theirs: Sequence[float]) -> tuple[float, float]:
    rng = np.random.default_rng(SEED)
    means = [
        np.asarray(values)[rng.integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1) for values in ours
    ]
    taus = [kendall(resampled, theirs) for resampled in np.stack(means, axis=1)]
    low, high = np.nanquantile(taus, [1 - SURE, SURE])
    return float(low), float(high)


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Paired | None:
    """Ours minus theirs, seed by seed; nothing if no seed is shared."""
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    difference = Spread.of([ours[seed] - theirs[seed] for seed in seeds])
    if difference.deviation is None:
        return Paired(seeds, difference, None)
    return Paired(seeds, difference, t_quantile(len(seeds) - 1) * difference.deviation / math.sqrt(len(seeds)))


def t_quantile(freedom: int) -> float:
    """The quantile of Student's t at 0.975."""
    if freedom <= len(T_QUANTILES):
        return T_QUANTILES[freedom - 1]
    z = NormalDist().inv_cdf(SURE)  # the expansion of Cornish and Fisher is exact to three decimals from here on
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
