"""LDC: LwF whose class means predict, and follow the backbone by a learned linear map."""

import numpy as np
import pytest
import torch

from etag.core.work import DataPass
from etag.methods.ldc import LdcOptions
from etag.models.backbone import pooled

EXACT = {"map": "least_squares", "ridge": 1e-12, "passes": 0}


def features(laboratory, index):
    """Features of a task's training images under the current backbone."""
    with torch.no_grad():
        return laboratory.method.solver.backbone.eval()(
            laboratory.preprocess.centered(laboratory.task(index).train.pixels)
        )


def class_means(laboratory, index):
    found, labels = features(laboratory, index), laboratory.task(index).train.labels
    return torch.stack([found[labels == label].mean(0) for label in sorted(set(labels.tolist()))])


# -- the solver is LwF's -----------------------------------------------------------------------------------


def test_its_solver_is_that_of_lwf_bit_for_bit(lab):
    one, other = lab("ldc"), lab("lwf")
    for laboratory in (one, other):
        laboratory.learn(0, 1, 2)
    mine, theirs = (laboratory.method.solver.state_dict() for laboratory in (one, other))
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_its_work_is_lwfs_then_the_map_then_the_new_means(lab):
    laboratory = lab("ldc")
    laboratory.begin(0)
    assert list(laboratory.works(0)) == ["solver", "prototypes"]
    laboratory.learn(0)
    laboratory.begin(1)
    assert list(laboratory.works(1)) == ["solver", "drift features", "drift", "prototypes"]


def test_without_compensation_nothing_is_learned_beside_lwf(lab):
    laboratory = lab("ldc", {"drift": None})
    laboratory.learn(0)
    before = laboratory.method.means.means.clone()
    laboratory.begin(1)
    assert list(laboratory.works(1)) == ["solver", "prototypes"]
    assert torch.equal(laboratory.method.means.means[:3], before)


# -- the means ---------------------------------------------------------------------------------------------


@pytest.fixture
def moved_exactly(lab):
    """A laboratory whose backbone moves in task 1 by a known linear map of its features, and in no other way."""

    def make(**options):
        laboratory = lab("ldc", options, images=60)
        laboratory.learn(0)
        laboratory.begin(1)
        size = laboratory.method.solver.backbone.feature_size
        noise = torch.randn(size, size, generator=torch.Generator().manual_seed(0))
        matrix = torch.eye(size) + 0.1 * noise
        laboratory.method.solver.backbone.pool = lambda maps: pooled(maps) @ matrix.T
        plan, result = laboratory.method.phases(laboratory.task(1)), None
        while True:
            try:
                work = plan.send(result)
            except StopIteration:
                return laboratory
            trained = not isinstance(work, DataPass)
            assert not (trained and work.name != "solver")
            result = None if trained else laboratory.engine.run_pass(work)  # the solver is not trained

    return make


def test_if_the_backbone_moves_linearly_the_old_means_are_the_true_ones(moved_exactly):
    laboratory = moved_exactly(drift=EXACT)
    torch.testing.assert_close(laboratory.method.means.means[:3], class_means(laboratory, 0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(laboratory.method.means.means[3:], class_means(laboratory, 1))


def test_without_compensation_they_are_not(moved_exactly):
    laboratory = moved_exactly(drift=None)
    error = (laboratory.method.means.means[:3] - class_means(laboratory, 0)).abs().max()
    assert error > 100e-5
    torch.testing.assert_close(laboratory.method.means.means[3:], class_means(laboratory, 1))


def test_old_means_are_mapped_by_least_squares_on_the_new_images(lab):
    laboratory = lab("ldc", {"drift": {"map": "least_squares", "ridge": 0.05, "passes": 0}}, lr=0.01)
    laboratory.learn(0)
    before, old = laboratory.method.means.means.double().numpy(), features(laboratory, 1).double().numpy()
    laboratory.learn(1)
    new = features(laboratory, 1).double().numpy()
    further = np.sqrt(0.05 * np.mean((old**2).sum(0))) * np.eye(old.shape[1])
    naive, *_ = np.linalg.lstsq(np.vstack([old, further]), np.vstack([new, further]), rcond=None)
    assert np.abs(new - old).max() > 0.01, "the backbone moved"
    np.testing.assert_allclose(laboratory.method.means.means[:3], before @ naive, rtol=1e-3, atol=1e-5)


def test_with_a_frozen_backbone_the_means_stay_and_nothing_is_trained_for_them(lab, monkeypatch):
    laboratory = lab("ldc")
    laboratory.method.solver.backbone.freeze("head")
    laboratory.learn(0)
    before = laboratory.method.means.means.clone()
    laboratory.begin(1)
    assert list(laboratory.works(1)) == ["solver", "prototypes"]
    assert torch.equal(laboratory.method.means.means[:3], before)


# -- predictions, and what is stored -------------------------------------------------------------------


def test_the_class_with_the_largest_cosine_is_predicted(lab):
    laboratory = lab("ldc")
    laboratory.learn(0, 1)
    method, inputs = laboratory.method, laboratory.preprocess.centered(laboratory.task(1).test.pixels)
    with torch.no_grad():
        found = method.classifier().eval()(inputs)
        rows = method.solver.backbone.eval()(inputs).double().numpy()
    means = method.means.means.double().numpy()
    cosines = [[row @ mean / np.linalg.norm(row) / np.linalg.norm(mean) for mean in means] for row in rows]
    assert found.argmax(1).tolist() == np.argmax(cosines, axis=1).tolist()
    assert found.shape[1] == 5


def test_it_stores_one_mean_per_class_and_no_map(lab):
    laboratory = lab("ldc")
    laboratory.learn(0, 1)
    assert set(laboratory.method.parts) == {"solver", "prototypes"}
    assert set(laboratory.method.parts["prototypes"].state_dict()) == {"means", "radius"}
    assert laboratory.method.means.means.shape == (5, laboratory.method.solver.backbone.feature_size)


def test_its_defaults():
    o = LdcOptions(name="ldc")
    assert (o.weight, o.tau, o.head.per_task, o.drift.map) == (10.0, 2.0, True, "linear")
