"""The map from old to new features: exact where the truth is linear, nothing where nothing moves."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from etag.core.random import Placement, Stream
from etag.core.scenario import Task
from etag.core.work import Phase
from etag.data.batches import FeatureBatches
from etag.engine.engine import Engine
from etag.methods.parts.drift import Drift, DriftOptions, PairCollector, least_squares_map
from etag.methods.parts.gaussians import JITTER, ClassGaussians
from etag.methods.parts.prototypes import Prototypes

SIZE = 6
EXACT = {"map": "least_squares", "ridge": 1e-12}
QUICK = {"steps": 1500, "lr": 0.01, "batch_size": 32}


def draw(*shape, key="a"):
    return torch.randn(*shape, generator=Stream.root(0).torch_generator(key, *shape))


MATRIX = torch.eye(SIZE) + 0.5 * draw(SIZE, SIZE, key="drift")  # the true move of the features


class Images(SimpleNamespace):
    """Inputs of two classes for each task; a backbone below turns them into features."""

    def __len__(self):
        return len(self.labels)


def task(index, each=40):
    labels = torch.arange(2 * index, 2 * index + 2).repeat_interleave(each)
    inputs = draw(len(labels), SIZE, key=index) + 2 * draw(4, SIZE, key="means")[labels]
    return Task(index, 2 * index, 2, Images(inputs=inputs, labels=labels), None, num_base=2)


class Linear(nn.Module):
    """A backbone whose features are a linear function of its inputs."""

    def __init__(self, matrix, is_frozen=False):
        super().__init__()
        self.matrix, self.is_frozen = matrix, is_frozen

    def forward(self, inputs):
        return inputs @ self.matrix.T


OLD, NEW = Linear(torch.eye(SIZE)), Linear(MATRIX)


def batches(name, images, augment):
    """As `Method.pass_batches` gives them; there is nothing to augment."""
    return FeatureBatches(images.inputs[None], images.labels, 16, Stream.root(0).child(name), Placement())


@pytest.fixture
def follow(runtime):
    """Let stored means follow from the old backbone to the new one on the images of task 1; returns the work done."""

    def run(stored, old=OLD, new=NEW):
        done = []

        def watched():
            plan = stored.follow(
                task(1),
                None if old is None else SimpleNamespace(network=SimpleNamespace(backbone=old)),
                SimpleNamespace(backbone=new),
                batches,
                Stream.root(0).child("drift"),
            )
            result = None
            while True:
                try:
                    work = plan.send(result)
                except StopIteration:
                    return
                done.append(work)
                result = yield work

        Engine(runtime).execute(watched())
        return done

    return run


def prototypes(**drift):
    """The means of the two classes of task 0, under the old backbone."""
    made, first = Prototypes(SIZE, DriftOptions.model_validate(drift) if drift else None), task(0)
    made.add_task(first, OLD(first.train.inputs), first.train.labels)
    return made


def true_means():
    images = task(0).train
    return torch.stack([NEW(images.inputs[images.labels == label]).mean(0) for label in range(2)])


# -- the truth is linear ---------------------------------------------------------------------------------


def test_compensated_means_are_the_true_ones_and_others_are_not(follow):
    compensated, stale = prototypes(**EXACT), prototypes()
    works = follow(compensated)
    assert [work.name for work in works] == ["drift features"], "computed, not trained"
    torch.testing.assert_close(compensated.means, true_means(), rtol=1e-5, atol=1e-5)
    assert follow(stale) == []
    assert (stale.means - true_means()).abs().max() > 0.5


def test_a_trained_map_comes_close(follow):
    compensated, stale = prototypes(train=QUICK), prototypes()
    works = follow(compensated)
    assert [work.name for work in works] == ["drift features", "drift"]
    assert isinstance(works[1], Phase)
    errors = [(found.means - true_means()).abs().max().item() for found in (compensated, stale)]
    assert errors[0] < 0.05
    assert errors[1] > 0.5


def test_a_small_network_does_where_the_new_images_are(follow):
    made, images = prototypes(map="mlp", hidden=64, train=QUICK), task(1).train
    near = torch.stack([images.inputs[images.labels == label].mean(0) for label in (2, 3)])
    made.store(means=near)
    follow(made)
    errors = [(found - NEW(near)).abs().max().item() for found in (made.means, near)]
    assert errors[0] < 0.3 < 0.5 < errors[1]


def test_covariances_follow_too(follow):
    drift = DriftOptions.model_validate(EXACT)
    made, images = ClassGaussians(SIZE, drift), task(0).train
    made.add_task(task(0), OLD(images.inputs), images.labels)
    follow(made)
    torch.testing.assert_close(made.means, true_means(), rtol=1e-5, atol=1e-5)
    for label in range(2):
        truth = np.cov(NEW(images.inputs[images.labels == label]).double().numpy().T)
        found = (made.factors[label] @ made.factors[label].T).double().numpy()
        np.testing.assert_allclose(found, truth + JITTER * (MATRIX @ MATRIX.T).numpy(), rtol=1e-4, atol=1e-4)


def test_a_naive_least_squares_computation_agrees():
    old = draw(50, SIZE, key="old")
    new = old @ MATRIX.T + draw(50, SIZE, key="noise")
    naive, *_ = np.linalg.lstsq(old.double().numpy(), new.double().numpy(), rcond=None)
    np.testing.assert_allclose(least_squares_map(old, new, 1e-12), naive.T, rtol=1e-4, atol=1e-5)


def test_with_a_penalty_too():
    """The penalty as further rows of the problem: sqrt(penalty) e_i should be mapped to itself."""
    old = draw(50, SIZE, key="old")
    new = old @ MATRIX.T + draw(50, SIZE, key="noise")
    x, y = old.double().numpy(), new.double().numpy()
    further = np.sqrt(0.3 * np.mean(np.sum(x**2, axis=0))) * np.eye(SIZE)
    naive, *_ = np.linalg.lstsq(np.vstack([x, further]), np.vstack([y, further]), rcond=None)
    np.testing.assert_allclose(least_squares_map(old, new, 0.3), naive.T, rtol=1e-4, atol=1e-5)


def test_directions_that_the_new_images_do_not_have_stay():
    old = draw(50, SIZE, key="old")
    old[:, 2:] = 0
    found = least_squares_map(old, old @ MATRIX.T, 1e-9)
    torch.testing.assert_close(found[:, :2], MATRIX[:, :2], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[:, 2:], torch.eye(SIZE)[:, 2:])
    assert torch.equal(least_squares_map(torch.zeros(3, SIZE), torch.zeros(3, SIZE), 1e-3), torch.eye(SIZE))


# -- nothing moves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["linear", "least_squares", "mlp"])
def test_with_a_frozen_backbone_the_map_is_the_identity_and_nothing_is_trained(follow, kind):
    made = prototypes(map=kind)
    before = made.means.clone()
    assert follow(made, new=Linear(MATRIX, is_frozen=True)) == []
    assert torch.equal(made.means, before)


def test_at_the_base_task_there_is_nothing_to_follow(follow):
    made = Prototypes(SIZE, DriftOptions())
    assert follow(made, old=None) == []
    assert len(made.means) == 0


def test_a_backbone_that_trained_but_did_not_move_leaves_the_means(follow):
    made = prototypes(**EXACT)
    before = made.means.clone()
    follow(made, new=OLD)
    torch.testing.assert_close(made.means, before)


# -- what is stored, and where the map starts --------------------------------------------------------


def test_nothing_of_the_map_is_stored_once_it_is_applied(follow):
    made = prototypes(train={"steps": 2})
    names = set(made.state_dict())
    follow(made)
    assert set(made.state_dict()) == names == {"means", "radius"}


def test_while_it_trains_it_belongs_to_what_a_checkpoint_saves(runtime):
    made, seen = prototypes(train={"steps": 2}), []
    teacher, solver = SimpleNamespace(network=SimpleNamespace(backbone=OLD)), SimpleNamespace(backbone=NEW)
    plan = made.follow(task(1), teacher, solver, batches, Stream.root(0))
    phase = plan.send(Engine(runtime).run_pass(next(plan)))
    seen.extend(made.state_dict())
    assert phase.name == "drift"
    assert "drift.map.weight" in seen


def test_the_map_starts_at_weights_that_depend_on_the_stream_alone(follow):
    found = []
    for state in (0, 1):
        torch.manual_seed(state)
        made = prototypes(train={"steps": 1})
        follow(made)
        found.append(made.means)
    assert torch.equal(*found)


def test_features_of_both_backbones_are_collected_side_by_side():
    (batch,) = FeatureBatches(draw(1, 4, SIZE), torch.arange(4), 4, Stream.root(0), Placement()).epoch(0)
    found = PairCollector(OLD, NEW)(batch)
    torch.testing.assert_close(found["features"], torch.cat([batch.inputs, batch.inputs @ MATRIX.T], dim=1))
    assert torch.equal(found["labels"], batch.labels)


def test_without_a_map_features_are_returned_as_they_are():
    drift, features = Drift(DriftOptions(), SIZE, Placement()), draw(3, SIZE)
    assert drift(features) is features
    assert drift.map_factors(features) is features


def test_the_defaults_are_those_of_the_release_at_the_scale_of_its_tasks():
    o = DriftOptions()
    assert o.map == "linear"
    assert (o.train.optimizer, o.train.lr, o.train.batch_size, o.train.weight_decay) == ("adam", 1e-3, 128, 0)
    assert o.train.steps == 20 * -(-5000 // 128)  # 20 epochs of CIFAR-100's 5,000 images per task
