"""Loss terms over the steps of a phase, prepared for a figure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from etag.report.records import LoggedStep

POINTS = 300  # per term and phase: more cannot be seen in the figure

Line = list[tuple[float, float]]  # (step, value); a value of NaN ends a task


@dataclass(frozen=True)
class PhaseLosses:
    """The loss terms of one phase, all tasks one after the other."""

    phase: str
    terms: dict[str, Line]
    task_starts: dict[int, int]  # by task: the number of steps of this phase before it


def losses_by_phase(steps: Sequence[LoggedStep]) -> list[PhaseLosses]:
    """One item per phase that has loss terms, in the order in which the phases first occur."""
    by_phase: dict[str, list[LoggedStep]] = {}
    for step in steps:
        if step.terms:
            by_phase.setdefault(step.phase, []).append(step)
    return [_losses(phase, own) for phase, own in by_phase.items()]


def _losses(phase: str, steps: Sequence[LoggedStep]) -> PhaseLosses:
    by_task: dict[int, list[LoggedStep]] = {}
    for step in steps:
        by_task.setdefault(step.task, []).append(step)
    starts: dict[int, int] = {}
    terms: dict[str, Line] = {}
    done = 0
    for task, own in by_task.items():
        starts[task] = done
        for term in dict.fromkeys(name for step in own for name in step.terms):
            line: Line = [(done + step.step, step.terms[term]) for step in own if term in step.terms]
            terms.setdefault(term, []).extend([*_thinned(line, POINTS // len(by_task)), (done, math.nan)])
        done += max(step.step for step in own)
    return PhaseLosses(phase, terms, starts)


def _thinned(line: Line, points: int) -> Line:
    """Means over equal stretches, so that every value counts."""
    stretch = math.ceil(len(line) / max(2, points))
    blocks = [line[start : start + stretch] for start in range(0, len(line), stretch)]
    return [(fmean(x for x, _ in block), fmean(y for _, y in block)) for block in blocks]
