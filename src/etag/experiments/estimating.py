"""What a grid will take: a few steps of each kind of run are measured, and counted up for all splits and seeds."""

import json
from collections.abc import Iterator

from etag.experiments.estimate import Estimate, estimate
from etag.experiments.grid import Grid, PlannedRun, by_label


def estimates(grid: Grid) -> Iterator[tuple[str, int, float, float]]:
    """Of runs that differ in the seed only: their label, how many, seconds and arithmetic operations of one."""
    measured: dict[str, Estimate] = {}
    for label, runs in by_label(grid.everything()).items():
        kind = _kind(runs[0])
        found = estimate(runs[0].config, measured.get(kind))
        measured.setdefault(kind, found)
        yield label, len(runs), sum(found.seconds), found.operations


def _kind(run: PlannedRun) -> str:
    """What a step's cost depends on."""
    plain = run.config.plain()
    return json.dumps({key: plain[key] for key in ("method", "model", "train", "runtime")}, sort_keys=True)
