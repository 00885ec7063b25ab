"""EFC++ and EFC: what may move, what follows, and how the head is balanced."""

import math

import numpy as np
import pytest
import torch

from etag.core.outputs import Need
from etag.data.views import ROTATIONS
from etag.methods.abilities import GeneratesFeatures
from etag.methods.efc import EfcOptions
from etag.methods.registry import METHODS


def features(laboratory, index, backbone=None):
    """Features of a task's training images."""
    backbone = backbone or laboratory.method.solver.backbone
    with torch.no_grad():
        return backbone.eval()(laboratory.preprocess.centered(laboratory.task(index).train.pixels))


def naive_matrix(rows, weight):
    """The mean of W' (diag(p) - p p') W over images, one by one."""
    total = np.zeros((weight.shape[1],) * 2)
    for row in rows:
        logits = weight @ row
        p = np.exp(logits - logits.max())
        p /= p.sum()
        total += weight.T @ (np.diag(p) - np.outer(p, p)) @ weight / len(rows)
    return total


@pytest.fixture
def at_second_task(lab, disturb):
    """A laboratory whose second task has begun, old and new solvers differing; its solver phase and a batch."""

    def make(**options):
        laboratory = lab("efc", options)
        laboratory.learn(0)
        laboratory.begin(1)
        disturb(laboratory.method.solver)
        phase = laboratory.works(1)["solver"]
        return laboratory, phase, next(phase.batches.epoch(0))

    return make


# -- the solver --------------------------------------------------------------------------------------------


def expected_terms(laboratory, batch, naive):
    """Cross-entropy among the new classes, and the penalty of the paper, number by number."""
    method = laboratory.method
    with torch.no_grad():
        student = method.solver.eval()(batch.inputs, Need.FEATURE | Need.LOGITS)
        teacher = method.teacher.network(batch.inputs, Need.FEATURE)
    steps = (student.feature - teacher.feature).double().numpy()
    weights = 7.0 * method.matrix.values.double().numpy() + 0.3 * np.eye(steps.shape[1])
    penalty = sum(d @ weights @ d for d in steps) / len(steps)
    return {"ce": naive.cross_entropy(student.logits, batch.labels, range(3, 5)), "efm": penalty}, student


def test_the_terms_of_efc_plus_plus(at_second_task, naive):
    laboratory, phase, batch = at_second_task(weight=7.0, damping=0.3)
    terms = {name: value.item() for name, value in phase.module.eval()(batch).items()}
    expected, _ = expected_terms(laboratory, batch, naive)
    assert expected["efm"] > 1e-3
    assert terms == pytest.approx(expected, rel=1e-4)


def test_efc_adds_a_cross_entropy_over_all_classes_in_which_each_has_the_same_weight(at_second_task, naive):
    laboratory, phase, batch = at_second_task(variant="efc", weight=7.0, damping=0.3)
    terms = {name: value.item() for name, value in phase.module.eval()(batch).items()}
    expected, student = expected_terms(laboratory, batch, naive)
    labels, drawn = laboratory.method.gaussians.replay(batch, laboratory.task(1), batch.total)
    old = naive.cross_entropy(laboratory.method.solver.head(drawn), labels)
    expected["replay"] = 3 / 5 * old + 2 / 5 * naive.cross_entropy(student.logits, batch.labels)
    assert terms == pytest.approx(expected, rel=1e-4)


def test_without_the_penalty_only_the_cross_entropy_is_left(at_second_task):
    _, phase, batch = at_second_task(weight=0, damping=0)
    assert set(phase.module.eval()(batch)) == {"ce"}


@pytest.mark.parametrize(("variant", "trained"), [("efc++", False), ("efc", True)])
def test_the_old_rows_are_trained_with_the_backbone_in_efc_alone(at_second_task, variant, trained):
    laboratory, phase, _ = at_second_task(variant=variant)
    in_group = {id(parameter) for parameter in phase.groups[0].parameters}
    first, last = laboratory.method.solver.head.blocks
    assert (id(first.weight) in in_group) == trained
    assert id(last.weight) in in_group


def test_after_the_base_task_batch_norm_statistics_stay(at_second_task):
    _, phase, _ = at_second_task()
    assert phase.batch_norm == "frozen"


# -- rotations at the base task ----------------------------------------------------------------------------


def test_at_the_base_task_rotated_images_are_classes_of_their_own(lab, naive):
    laboratory = lab("efc")
    laboratory.begin(0)
    method, phase = laboratory.method, laboratory.works(0)["solver"]
    batch = next(phase.batches.epoch(0))
    terms = {name: value.item() for name, value in phase.module.eval()(batch).items()}
    with torch.no_grad():
        views = torch.cat([torch.rot90(batch.inputs, turns, (2, 3)) for turns in range(4)])
        logits = method.solver.head(method.solver.backbone.eval()(views))
    assert logits.shape[1] == 3 + 9
    upright, rotated = batch.labels.tolist(), []
    for turns in range(1, 4):  # three rows for each class, after the three of the upright classes
        rotated += [3 + 3 * label + turns - 1 for label in upright]
    assert terms == pytest.approx({"ce": naive.cross_entropy(logits, [*upright, *rotated])}, rel=1e-4)


def test_all_rows_are_trained_there_and_the_rotated_ones_removed(lab, snapshot):
    laboratory = lab("efc", lr=0.01)
    laboratory.begin(0)
    before = snapshot(laboratory.method.solver.head)
    fresh = lab("efc", lr=0.01)
    fresh.learn(0)
    (block,) = fresh.method.solver.head.blocks
    assert set(before) == {"blocks.0.weight", "blocks.1.weight"}, "the release's head has no bias"
    assert block.weight.shape == before["blocks.0.weight"].shape
    assert not torch.equal(block.weight, before["blocks.0.weight"])


def test_a_saved_model_has_the_structure_of_one_that_was_built_for_it(lab):
    laboratory, rebuilt = lab("efc"), lab("efc")
    laboratory.learn(0, 1)
    rebuilt.method.build_after([3, 2])
    for role, part in laboratory.method.parts.items():
        assert list(rebuilt.method.parts[role].state_dict()) == list(part.state_dict())
        rebuilt.method.parts[role].load_state_dict(part.state_dict())


def test_without_rotation_the_base_task_is_plain_cross_entropy(lab, naive):
    laboratory = lab("efc", {"rotation": False})
    laboratory.begin(0)
    phase = laboratory.works(0)["solver"]
    batch = next(phase.batches.epoch(0))
    terms = {name: value.item() for name, value in phase.module.eval()(batch).items()}
    logits = laboratory.method.solver.eval()(batch.inputs, Need.LOGITS).logits
    assert logits.shape[1] == 3
    assert terms == pytest.approx({"ce": naive.cross_entropy(logits, batch.labels)}, rel=1e-4)
    assert METHODS["efc"].transforms is ROTATIONS


# -- what is stored, and how it follows -----------------------------------------------------------------


def test_the_matrix_is_that_of_the_newest_images_and_of_all_classes(lab):
    laboratory = lab("efc", lr=0.01)
    for index, classes in ((0, 3), (1, 5)):
        laboratory.learn(index)
        weight = torch.cat([block.weight for block in laboratory.method.solver.head.blocks]).detach().double().numpy()
        assert weight.shape[0] == classes
        expected = naive_matrix(features(laboratory, index).double().numpy(), weight)
        found = laboratory.method.matrix.values
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5 * np.abs(expected).max())


def test_new_classes_get_the_moments_of_their_features(lab):
    laboratory = lab("efc", lr=0.01)
    laboratory.learn(0, 1)
    rows, labels = features(laboratory, 1).double().numpy(), laboratory.task(1).train.labels.numpy()
    for label in (3, 4):
        own = rows[labels == label]
        np.testing.assert_allclose(laboratory.method.gaussians.means[label], own.mean(0), rtol=1e-3, atol=1e-5)
        factor = laboratory.method.gaussians.factors[label].double().numpy()
        np.testing.assert_allclose(factor @ factor.T, np.cov(own.T) + 1e-5 * np.eye(len(own.T)), rtol=1e-3, atol=1e-4)


def test_old_means_move_by_the_weighted_drift_of_the_new_images_and_covariances_stay(lab):
    laboratory = lab("efc", lr=0.01)
    laboratory.learn(0)
    method = laboratory.method
    means, matrix, factors = (
        value.double().numpy().copy()
        for value in (method.gaussians.means, method.matrix.values, method.gaussians.factors)
    )
    laboratory.learn(1)
    old = features(laboratory, 1, method.teacher.network.backbone).double().numpy()
    new = features(laboratory, 1).double().numpy()
    distance = np.array([[(row - mean) @ matrix @ (row - mean) for row in old] for mean in means])
    nearness = (distance.max() - distance) / (distance.max() - distance.min())
    weights = np.exp(nearness / (2 * 0.2**2))
    weights /= weights.sum(1, keepdims=True)
    moved = means + weights @ (new - old)
    assert np.abs(moved - means).max() > 1e-3
    np.testing.assert_allclose(method.gaussians.means[:3], moved, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(method.gaussians.factors[:3].double().numpy(), factors)


def test_with_drift_means_and_covariances_follow_a_map_instead(lab):
    laboratory = lab("efc", {"drift": {"map": "least_squares", "ridge": 0.05, "passes": 0}}, lr=0.01)
    laboratory.learn(0)
    method = laboratory.method
    means, factors = method.gaussians.means.double().numpy(), method.gaussians.factors.double().numpy()
    laboratory.learn(1)
    old = features(laboratory, 1, method.teacher.network.backbone).double().numpy()
    new = features(laboratory, 1).double().numpy()
    further = math.sqrt(0.05 * np.mean((old**2).sum(0))) * np.eye(old.shape[1])
    naive, *_ = np.linalg.lstsq(np.vstack([old, further]), np.vstack([new, further]), rcond=None)
    np.testing.assert_allclose(method.gaussians.means[:3], means @ naive, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(method.gaussians.factors[:3], naive.T @ factors, rtol=1e-3, atol=1e-4)


def test_a_frozen_backbone_needs_no_penalty_no_rotation_and_no_drift(lab):
    laboratory = lab("efc")
    laboratory.method.solver.backbone.freeze("head")
    laboratory.learn(0)
    means = laboratory.method.gaussians.means.clone()
    laboratory.learn(1)
    torch.testing.assert_close(laboratory.method.gaussians.means[:3], means)
    assert laboratory.method.solver.head.outputs == 5


# -- the re-balancing of EFC++ ---------------------------------------------------------------------------


def test_the_work_of_both_variants(lab):
    found = {}
    for variant in ("efc++", "efc"):
        laboratory = lab("efc", {"variant": variant})
        laboratory.learn(0)
        laboratory.begin(1)
        found[variant] = list(laboratory.works(1))
    assert found == {"efc++": ["solver", "features", "augmented features", "head"], "efc": ["solver", "features"]}


@pytest.fixture
def rebalanced(lab):
    """A laboratory whose second task is about to re-balance the head, that phase, and its first batch."""
    laboratory = lab("efc", {"rebalance": {"feature_passes": 2, "train": {"batch_size": 10}}})
    laboratory.learn(0)
    laboratory.begin(1)
    phase = laboratory.works(1)["head"]
    return laboratory, phase, next(phase.batches.epoch(0))


def test_the_head_alone_is_trained_on_as_many_features_per_class(rebalanced, naive):
    laboratory, phase, batch = rebalanced
    head, gaussians = laboratory.method.solver.head, laboratory.method.gaussians
    assert batch.total == 4, "of 10 features, those of two of five classes"
    assert len(phase.batches) == 4, "16 new features"
    labels, drawn = gaussians.replay(batch, laboratory.task(1), 6)
    new, old = naive.cross_entropy(head(batch.inputs), batch.labels), naive.cross_entropy(head(drawn), labels)
    assert phase.module(batch)["ce"].item() == pytest.approx(2 / 5 * new + 3 / 5 * old, rel=1e-5)
    assert {id(parameter) for parameter in phase.groups[0].parameters} == {id(block.weight) for block in head.blocks}


def test_it_does_not_touch_the_backbone_and_moves_every_row(rebalanced, snapshot):
    laboratory, phase, _ = rebalanced
    before = snapshot(laboratory.method.solver)
    laboratory.engine.train(phase)
    after = laboratory.method.solver.state_dict()
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert changed == {"head.blocks.0.weight", "head.blocks.1.weight"}


def test_the_gaussians_are_not_sent_along_at_every_step(rebalanced):
    _, phase, _ = rebalanced
    assert list(phase.module.buffers()) == []


# -- the rest ----------------------------------------------------------------------------------------------


def test_it_generates_features_of_any_class(lab):
    laboratory = lab("efc")
    laboratory.learn(0, 1)
    method, labels = laboratory.method, torch.arange(5).repeat_interleave(200)
    assert isinstance(method, GeneratesFeatures)
    found = method.generate_features(labels)
    assert torch.equal(found, method.generate_features(labels))
    for label in range(5):
        error = (found[labels == label].mean(0) - method.gaussians.means[label]).abs().max()
        assert error < 4 * method.gaussians.factors[label].norm(dim=1).max() / math.sqrt(200)


def test_its_defaults_are_those_of_the_release():
    o = EfcOptions(name="efc")
    assert (o.variant, o.weight, o.damping, o.sigma, o.rotation) == ("efc++", 10.0, 0.1, 0.2, True)
    assert (o.batch_norm, o.head.bias, o.drift) == ("frozen", False, None)
    t = o.rebalance.train
    assert (t.optimizer, t.lr, t.momentum, t.weight_decay, t.epochs, t.batch_size) == ("sgd", 1e-3, 0.9, 5e-4, 50, 256)


def test_its_info_says_what_it_is():
    info = METHODS["efc"].info
    assert info.title == "EFC++"
    assert "covariance" in info.stores
