"""LwM: LwF, and the attention map for the likeliest old class."""

import pytest
import torch

from etag.core.errors import EtagError
from etag.methods.lwm import LwmOptions


@pytest.fixture
def at_second_task(lab, disturb):
    """A laboratory whose second task has begun, old and new solvers differing; the terms of a batch."""

    def make(name="lwm", **options):
        laboratory = lab(name, options)
        for index in range(2):
            laboratory.begin(index)
            disturb(laboratory.method.solver, f"solver {index}")
        phase = laboratory.works(1)["solver"]
        terms = phase.module.eval()(next(phase.batches.epoch(0)))
        return laboratory, {name: value.item() for name, value in terms.items()}

    return make


def test_it_is_lwf_and_attention(at_second_task):
    _, lwf = at_second_task("lwf", weight=2.0, tau=2.0)
    _, lwm = at_second_task()
    assert set(lwm) - set(lwf) == {"attention"}
    assert {name: lwm[name] for name in lwf} == pytest.approx(lwf, rel=1e-5)
    assert lwm["attention"] > 0
    _, twice = at_second_task(gamma=2.0)
    assert twice["attention"] == pytest.approx(2 * lwm["attention"], rel=1e-5)


def test_the_attention_changes_the_backbone(at_second_task):
    laboratory, _ = at_second_task()
    solver = laboratory.method.solver.requires_grad_(True)
    phase = laboratory.works(1)["solver"]
    phase.module.eval()(next(phase.batches.epoch(0)))["attention"].backward()
    assert any(p.grad is not None and p.grad.any() for p in solver.backbone.parameters())


def test_by_default_it_is_the_last_stage_whose_map_has_more_than_one_pixel(lab):
    method = lab("lwm").method  # images of 8 pixels per side
    assert method.map_pixels() == [64, 16, 4, 1]
    assert method.stage == 3
    assert lab("lwm", {"stage": 1}).method.stage == 1


@pytest.mark.parametrize(
    ("stage", "message"), [(4, "attention needs a map of more than one pixel"), (5, "this backbone has 4 stages")]
)
def test_a_stage_without_attention_is_refused(lab, stage, message):
    with pytest.raises(EtagError, match=message):
        lab("lwm", {"stage": stage}).method.check([3, 2, 2])


def test_old_heads_stay_as_they_are(lab, snapshot):
    laboratory = lab("lwm", lr=0.01, weight_decay=0.1)
    laboratory.learn(0)
    before = snapshot(laboratory.method.solver.head)
    laboratory.learn(1)
    after = laboratory.method.solver.head.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_its_defaults():
    options = LwmOptions(name="lwm")
    assert (options.beta, options.gamma, options.tau, options.stage, options.head.per_task) == (2, 1, 2, None, True)
