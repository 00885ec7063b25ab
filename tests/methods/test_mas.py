"""MAS: importance without labels, by the length of the outputs. (Its parts: parts/test_importance.py.)"""

from dataclasses import replace
from functools import partial

import torch

from etag.core.outputs import Need
from etag.methods.mas import MasOptions


def test_importance_is_the_mean_absolute_gradient_of_the_length_of_the_outputs(lab):
    laboratory = lab("mas", {"importance": {"estimator": "images"}})
    laboratory.learn(0)
    method, images = laboratory.method, laboratory.task(0).train
    solver, expected = method.solver.eval().requires_grad_(True), 0.0
    for pixels in images.pixels:
        length = solver(laboratory.preprocess.centered(pixels[None]), Need.LOGITS).logits.square().sum().sqrt()
        found = torch.autograd.grad(length, list(solver.backbone.parameters()))
        expected += torch.cat([part.reshape(-1) for part in found]).abs() / len(images)
    torch.testing.assert_close(method.importance.values, expected, rtol=1e-3, atol=1e-5 * expected.max().item())


def test_labels_do_not_matter(lab):
    laboratory = lab("mas")
    laboratory.learn(0)
    method, task = laboratory.method, laboratory.task(0)
    sums = []
    for labels in (task.train.labels, task.train.labels.flip(0)):
        relabeled = replace(task, train=replace(task.train, labels=labels))
        batches = partial(method.pass_batches, "importance")
        data_pass = next(method.importance.measure_task(relabeled, method.solver, batches))
        sums.append(laboratory.engine.run_pass(data_pass)["importance"])
    assert torch.equal(*sums)


def test_a_task_trains_under_the_penalty_and_then_measures(lab):
    laboratory = lab("mas")
    laboratory.learn(0)
    laboratory.begin(1)
    works = laboratory.works(1)
    assert list(works) == ["solver", "importance"]
    assert set(works["solver"].module(next(works["solver"].batches.epoch(0)))) == {"ce", "penalty"}


def test_its_defaults():
    o = MasOptions(name="mas")
    assert (o.weight, o.importance.alpha, o.importance.estimator, o.head.per_task) == (400.0, 0.5, "survey", True)
