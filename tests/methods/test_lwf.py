"""LwF: cross-entropy of the new head, and the old heads' outputs distilled on new images."""

import math

import pytest
import torch

from etag.core.outputs import Need
from etag.methods.lwf import LwfOptions


@pytest.fixture
def at_second_task(lab, disturb):
    """A laboratory whose second task has begun, old and new solvers differing; its solver phase and a batch."""

    def make(**options):
        laboratory = lab("lwf", options)
        for index in range(2):
            laboratory.begin(index)
            disturb(laboratory.method.solver, f"solver {index}")
        phase = laboratory.works(1)["solver"]
        return laboratory, phase, next(phase.batches.epoch(0))

    return make


def test_its_terms_are_those_of_the_paper(at_second_task, naive):
    laboratory, phase, batch = at_second_task(weight=7.0, tau=3.0)
    terms = {name: value.item() for name, value in phase.module.eval()(batch).items()}
    student = laboratory.method.solver(batch.inputs, Need.LOGITS).logits
    teacher = laboratory.method.teacher.network(batch.inputs, Need.LOGITS).logits
    distilled = 0.0
    for new, old in zip(naive.rows(student), naive.rows(teacher), strict=True):
        log_q, log_p = (naive.log_softmax([value / 3 for value in row[:3]]) for row in (new, old))
        distilled -= sum(math.exp(p) * q for p, q in zip(log_p, log_q, strict=True)) / batch.total
    own = naive.cross_entropy(student, batch.labels, range(3, 5))
    assert terms == pytest.approx({"ce": own, "kd": 7 * distilled}, rel=1e-4)


def test_the_base_task_has_nothing_to_distill(lab):
    laboratory = lab("lwf")
    laboratory.begin(0)
    phase = laboratory.works(0)["solver"]
    assert set(phase.module(next(phase.batches.epoch(0)))) == {"ce"}


def test_old_heads_stay_as_they_are(lab, snapshot):
    laboratory = lab("lwf", lr=0.01, weight_decay=0.1)
    laboratory.learn(0)
    before = snapshot(laboratory.method.solver)
    laboratory.learn(1)
    after = laboratory.method.solver.state_dict()
    assert torch.equal(after["head.blocks.0.weight"], before["head.blocks.0.weight"])
    assert not torch.equal(after["backbone.stages.0.0.0.weight"], before["backbone.stages.0.0.0.weight"])


def test_with_one_shared_head_old_rows_are_trained_too(lab, snapshot):
    laboratory = lab("lwf", {"head": {"per_task": False}}, lr=0.01)
    laboratory.learn(0)
    before = snapshot(laboratory.method.solver.head)
    laboratory.learn(1)
    after = laboratory.method.solver.head.state_dict()
    assert not torch.equal(after["blocks.0.weight"], before["blocks.0.weight"])


def test_its_defaults():
    options = LwfOptions(name="lwf")
    assert (options.weight, options.tau, options.head.per_task, options.head.compare) == (
        10.0,
        2.0,
        True,
        "probability",
    )
