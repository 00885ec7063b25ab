"""EWC: the Fisher information weighs how far each weight may move. (Its parts: parts/test_importance.py.)"""

import pytest
import torch

from etag.core.outputs import Need
from etag.methods.ewc import EwcOptions


def test_importance_is_the_mean_squared_gradient_of_the_log_likelihood(lab):
    laboratory = lab("ewc", {"importance": {"estimator": "images"}})
    laboratory.learn(0)
    method, images = laboratory.method, laboratory.task(0).train
    solver, expected = method.solver.eval().requires_grad_(True), 0.0
    for pixels in images.pixels:
        logits = solver(laboratory.preprocess.centered(pixels[None]), Need.LOGITS).logits
        loss = -logits.log_softmax(1).max()  # of the likeliest class
        found = torch.autograd.grad(loss, list(solver.backbone.parameters()))
        expected += torch.cat([part.reshape(-1) for part in found]).square() / len(images)
    torch.testing.assert_close(method.importance.values, expected, rtol=1e-3, atol=1e-5 * expected.max().item())


def test_a_task_trains_under_the_penalty_and_then_measures(lab):
    laboratory = lab("ewc", {"weight": 7.0})
    laboratory.learn(0)
    laboratory.begin(1)
    works = laboratory.works(1)
    assert list(works) == ["solver", "importance"]
    assert set(works["solver"].module(next(works["solver"].batches.epoch(0)))) == {"ce", "penalty"}
    assert laboratory.method.parts["importance"] is laboratory.method.importance


def test_the_penalty_is_half_the_weighted_squared_distance(lab, disturb):
    laboratory = lab("ewc", {"weight": 7.0})
    laboratory.learn(0)
    laboratory.begin(1)
    solver, values = laboratory.method.solver, laboratory.method.importance.values
    before = torch.cat([p.detach().reshape(-1) for p in solver.backbone.parameters()])
    disturb(solver)
    after = torch.cat([p.detach().reshape(-1) for p in solver.backbone.parameters()])
    phase = next(laboratory.method.phases(laboratory.task(1)))
    found = phase.module.eval()(next(phase.batches.epoch(0)))["penalty"].item()
    assert found == pytest.approx(7 / 2 * (values * (after - before).square()).sum().item(), rel=1e-4)


def test_its_defaults():
    o = EwcOptions(name="ewc")
    assert (o.weight, o.labels, o.importance.alpha, o.importance.estimator) == (10_000.0, "argmax", 0.5, "survey")
    assert o.head.per_task
