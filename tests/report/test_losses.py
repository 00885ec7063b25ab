import math

import pytest

from etag.report.losses import POINTS, losses_by_phase
from etag.report.records import LoggedStep


def steps(task, phase, **terms):
    """Logged steps, one after the other, with one value of each term."""
    rows = zip(*terms.values(), strict=True)
    return [
        LoggedStep(task=task, phase=phase, step=number, terms=dict(zip(terms, row, strict=True)))
        for number, row in enumerate(rows, start=1)
    ]


def test_tasks_follow_each_other_with_a_gap():
    log = [
        *steps(0, "solver", ce=[3.0, 2.0]),
        *steps(0, "generator", kl=[9.0]),
        *steps(1, "solver", ce=[5.0], replay=[7.0]),
    ]
    solver, generator = losses_by_phase(log)
    assert (solver.phase, generator.phase) == ("solver", "generator")
    assert solver.task_starts == {0: 0, 1: 2}
    assert [point for point in solver.terms["ce"] if not math.isnan(point[1])] == [(1, 3.0), (2, 2.0), (3, 5.0)]
    assert math.isnan(solver.terms["ce"][2][1])
    assert solver.terms["replay"][0] == (3, 7.0)


def test_long_logs_are_thinned_to_means():
    (losses,) = losses_by_phase(steps(0, "solver", ce=[float(n % 2) for n in range(10 * POINTS)]))
    line = [value for _, value in losses.terms["ce"] if not math.isnan(value)]
    assert len(line) == POINTS
    assert line == pytest.approx([0.5] * POINTS)


def test_phases_without_terms_are_left_out():
    assert losses_by_phase([]) == []
    assert losses_by_phase([LoggedStep(task=0, phase="fisher", step=1, terms={})]) == []
