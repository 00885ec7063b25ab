"""Loss terms over the steps of a phase, made ready for a picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from etag.report.records import Step

POINTS = 300  # of one term in one phase: finer than the picture can show

Line = list[tuple[float, float]]  # (step, value); a value of nan parts two tasks


@dataclass(frozen=True)
class Trace:
    """One phase over all tasks, one task behind the other."""

    phase: str
    terms: dict[str, Line]
    task_starts: dict[int, int]  # by task: the steps of this phase done before it


def traces(steps: Sequence[Step]) -> list[Trace]:
    """One trace a phase, in the order in which phases first occur."""
    by_phase: dict[str, list[Step]] = {}
    for step in steps:
        if step.terms:
            by_phase.setdefault(step.phase, []).append(step)
    return [_trace(phase, own) for phase, own in by_phase.items()]


def _trace(phase: str, steps: Sequence[Step]) -> Trace:
    by_task: dict[int, list[Step]] = {}
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
    return Trace(phase, terms, starts)


def _thinned(line: Line, points: int) -> Line:
    """Means over equal stretches, so that no spike is lost without trace."""
    stretch = math.ceil(len(line) / max(2, points))
    blocks = [line[start : start + stretch] for start in range(0, len(line), stretch)]
    return [(fmean(x for x, _ in block), fmean(y for _, y in block)) for block in blocks]
