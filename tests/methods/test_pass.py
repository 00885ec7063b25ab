"""PASS: rotations as classes of their own, prototypes replayed with noise, features distilled."""

import math

import numpy as np
import pytest
import torch

from etag.core.outputs import Need
from etag.data.views import ROTATIONS
from etag.methods.pass_ import PassOptions


@pytest.fixture
def at_second_task(lab, disturb):
    """A laboratory with prototypes whose second task has begun, old and new solvers differing; its solver phase."""

    def make(**options):
        laboratory = lab("pass", options)
        laboratory.learn(0)
        laboratory.begin(1)
        disturb(laboratory.method.solver)
        return laboratory, laboratory.works(1)["solver"]

    return make


def test_its_terms_are_those_of_the_paper(at_second_task, naive):
    laboratory, phase = at_second_task(tau=0.5, l2_weight=3.0, replay_weight=2.0)
    batch, method = next(phase.batches.epoch(0)), laboratory.method
    terms = {name: value.item() for name, value in phase.module.eval()(batch).items()}
    views = ROTATIONS.all_views(batch.inputs, batch.labels)
    student, teacher = (n.eval()(views.inputs, Need.FEATURE).feature for n in (method.solver, method.teacher.network))
    logits = method.solver.head(student) / 0.5
    labels = batch.draws.integers("replay labels", 0, 3, batch.total)
    noise = batch.draws.normal("replay noise", batch.total, student.shape[1])
    replayed = method.prototypes.means[labels] + noise * method.prototypes.radius
    squares = naive.squares(student, teacher)
    expected = {
        "ce": naive.cross_entropy(logits, views.labels),
        "l2": 3 * math.sqrt(sum(squares)),
        "replay": 2 * naive.cross_entropy(method.solver.head(replayed) / 0.5, 4 * labels),
    }
    assert terms == pytest.approx(expected, rel=1e-3)


def test_a_rotated_image_has_a_class_of_its_own_and_the_upright_one_is_predicted(lab):
    laboratory = lab("pass")
    laboratory.learn(0)
    method, images = laboratory.method, laboratory.task(0).test
    assert method.solver.head.outputs == 4 * 3
    inputs = laboratory.preprocess.centered(images.pixels)
    with torch.no_grad():
        logits = method.solver.eval()(inputs, Need.LOGITS).logits
        found = method.classifier().eval()(inputs)
    torch.testing.assert_close(found, logits[:, ::4].log_softmax(1))


def test_prototypes_are_the_mean_features_of_the_trained_solver(lab):
    laboratory = lab("pass")
    laboratory.learn(0, 1)
    method, images = laboratory.method, laboratory.task(1).train
    with torch.no_grad():
        features = method.solver.eval()(laboratory.preprocess.centered(images.pixels), Need.FEATURE).feature
    for label in (3, 4):
        torch.testing.assert_close(method.prototypes.means[label], features[images.labels == label].mean(0))
    assert method.prototypes.means.shape[0] == 5


def test_with_drift_old_prototypes_follow_the_backbone_and_without_they_stay(lab):
    drift = {"map": "least_squares", "ridge": 0.05, "passes": 0}
    follows, stays = lab("pass", {"drift": drift}, lr=0.01), lab("pass", lr=0.01)
    for laboratory in (follows, stays):
        laboratory.learn(0)
    inputs = follows.preprocess.centered(follows.task(1).train.pixels)
    before = follows.method.prototypes.means.clone()
    old = follows.method.solver.backbone.eval()(inputs).detach().double().numpy()
    for laboratory in (follows, stays):
        laboratory.learn(1)
    new = follows.method.solver.backbone.eval()(inputs).detach().double().numpy()
    further = math.sqrt(0.05 * np.mean((old**2).sum(0))) * np.eye(old.shape[1])
    naive, *_ = np.linalg.lstsq(np.vstack([old, further]), np.vstack([new, further]), rcond=None)
    moved = before.double().numpy() @ naive
    assert np.abs(moved - before.numpy()).max() > 1e-3
    np.testing.assert_allclose(follows.method.prototypes.means[:3], moved, rtol=1e-3, atol=1e-4)
    assert torch.equal(stays.method.prototypes.means[:3], before)
    assert torch.equal(follows.method.prototypes.radius, stays.method.prototypes.radius)


def test_its_defaults():
    o = PassOptions(name="pass")
    assert o.drift is None
    assert (o.tau, o.l2_weight, o.l2_reduction, o.replay_weight) == (0.1, 10.0, "frobenius", 10.0)
