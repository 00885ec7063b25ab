import math

import numpy as np
import pytest
import torch

from etag.core.random import Draws, Stream
from etag.core.scenario import Task
from etag.core.work import Batch
from etag.methods.parts.prototypes import PrototypeOptions, PrototypeReplay, Prototypes

TASKS = [Task(index, old, new, None, None, base=3) for index, (old, new) in enumerate([(0, 3), (3, 2)])]
BATCH = Batch(torch.zeros(4, 1), torch.zeros(4).long(), Draws(Stream.root(0).child("step")), 4)


def features_of(task, each=6):
    """Features of every class, mixed, as a sweep finds them; each class has a mean and a spread of its own."""
    labels = torch.arange(each * task.new) % task.new + task.old
    noise = torch.randn(len(labels), 4, generator=Stream.root(task.index).generator())
    return {"features": 10.0 * labels[:, None] + (1 + labels[:, None]) * noise, "labels": labels}


@pytest.fixture
def learned():
    """Prototypes after both tasks."""
    made = Prototypes(4)
    for task in TASKS:
        made.learn(task, features_of(task))
    return made


def of_class(label):
    task = TASKS[label >= 3]
    found = features_of(task)
    return found["features"][found["labels"] == label].double().numpy()


# -- what is kept ----------------------------------------------------------------------------------


def test_every_class_has_the_mean_and_the_deviation_of_its_features(learned):
    assert learned.means.shape == learned.deviations.shape == (5, 4)
    for label in range(5):
        rows = of_class(label).tolist()
        columns = list(zip(*rows, strict=True))
        means = [sum(column) / 6 for column in columns]
        pairs = zip(columns, means, strict=True)
        deviations = [math.sqrt(sum((value - mean) ** 2 for value in column) / 6) for column, mean in pairs]
        assert learned.means[label].tolist() == pytest.approx(means, rel=1e-4)
        assert learned.deviations[label].tolist() == pytest.approx(deviations, rel=1e-4)


def test_the_radius_is_that_of_the_base_classes(learned):
    traces = [np.trace(np.cov(of_class(label).T, bias=True)) / 4 for label in range(3)]
    assert learned.radius.item() == pytest.approx(math.sqrt(sum(traces) / 3), rel=1e-5)


def test_it_is_fixed_after_the_base_task_and_so_are_old_prototypes():
    made = Prototypes(4)
    made.learn(TASKS[0], features_of(TASKS[0]))
    before = {name: value.clone() for name, value in made.state_dict().items()}
    made.learn(TASKS[1], features_of(TASKS[1]))
    assert torch.equal(made.radius, before["radius"])
    assert torch.equal(made.means[:3], before["means"])
    assert torch.equal(made.deviations[:3], before["deviations"])


def test_one_image_of_a_class_is_its_prototype_without_spread():
    made = Prototypes(4)
    made.learn(TASKS[0], features_of(TASKS[0], each=1))
    assert torch.equal(made.means, features_of(TASKS[0], each=1)["features"])
    assert torch.count_nonzero(made.deviations) == made.radius == 0  # not NaN


def test_they_are_saved_and_loaded_into_fresh_ones(learned):
    fresh = Prototypes(4)
    fresh.load_state_dict(learned.state_dict())
    for name in ("means", "deviations", "radius"):
        assert torch.equal(getattr(fresh, name), getattr(learned, name))


# -- what is made of it ----------------------------------------------------------------------------


def test_labels_are_drawn_uniformly_from_the_old_classes(learned):
    labels, _ = learned.made(BATCH, TASKS[1], 3000, "none")
    counts = torch.bincount(labels, minlength=5).tolist()
    assert counts[3:] == [0, 0]
    assert counts[:3] == [pytest.approx(1000, abs=100)] * 3


def test_without_spread_the_prototypes_themselves_are_made(learned):
    labels, features = learned.made(BATCH, TASKS[1], 20, "none")
    assert features.tolist() == [learned.means[label].tolist() for label in labels]


@pytest.mark.parametrize("spread", ["class", "radius"])
def test_noise_is_as_wide_as_the_class_or_as_the_base_classes(learned, spread):
    labels, features = learned.made(BATCH, TASKS[1], 6000, spread)
    assert torch.equal(labels, learned.made(BATCH, TASKS[1], 6000, "none")[0])
    for label in range(3):
        rows = features[labels == label]
        width = learned.deviations[label] if spread == "class" else learned.radius.expand(4)
        torch.testing.assert_close(rows.mean(0), learned.means[label], rtol=0, atol=0.1 * width.max().item())
        torch.testing.assert_close(rows.std(0), width, rtol=0.1, atol=0)


def test_with_a_radius_every_coordinate_has_noise_of_its_own(learned):
    labels, features = learned.made(BATCH, TASKS[1], 6000, "radius")
    apart = torch.corrcoef((features - learned.means[labels]).T) - torch.eye(4)
    assert apart.abs().max() < 0.05


def test_a_steps_draws_decide_and_another_steps_are_others(learned):
    other = Batch(BATCH.inputs, BATCH.labels, Draws(Stream.root(0).child("next")), 4)
    one, same, another = (learned.made(batch, TASKS[1], 8, "radius")[1] for batch in (BATCH, BATCH, other))
    assert torch.equal(one, same)
    assert not torch.equal(one, another)


# -- in place of a generator -----------------------------------------------------------------------


@pytest.mark.parametrize("spread", ["none", "class"])
def test_replay_makes_features_as_its_option_says(spread):
    replay = PrototypeReplay(PrototypeOptions(spread=spread), None)
    replay.build(4, Stream.root(0))
    for task in TASKS:
        replay.begin_task(task)
        replay.grow(task.new, Stream.root(0))
        replay.learn(task, features_of(task))
    found, expected = replay.made(BATCH, TASKS[1], 8), replay.generator.made(BATCH, TASKS[1], 8, spread)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_b4_replays_the_means_of_its_trained_solvers_features(lab):
    laboratory = lab("b4")
    laboratory.learn(0)
    images, method = laboratory.task(0).train, laboratory.method
    features = laboratory.engine.run_pass(method.features_pass("again", images))["features"]
    for label in range(3):
        expected = features[images.labels == label].double().mean(0)
        torch.testing.assert_close(method.replay.generator.means[label].double(), expected, rtol=1e-4, atol=1e-6)
    laboratory.learn(1)
    assert method.replay.generator.means.shape == (5, method.solver.backbone.feature_size)
