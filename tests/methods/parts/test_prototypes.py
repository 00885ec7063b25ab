import math

import numpy as np
import pytest
import torch

from etag.core.errors import EtagError
from etag.core.random import Draws, Placement, Stream
from etag.core.scenario import Task
from etag.core.work import Batch
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.fidelity import FidelityOptions
from etag.methods.parts.prototypes import PrototypeOptions, Prototypes

TASKS = [Task(index, old, new, None, None, num_base=3) for index, (old, new) in enumerate([(0, 3), (3, 2)])]
BATCH = Batch(torch.zeros(4, 1), torch.zeros(4).long(), Draws(Stream.root(0).child("step")), 4)


def features_of(task, each=6):
    """Features of every class, mixed, as a pass finds them; each class has a mean and a spread of its own."""
    labels = torch.arange(each * task.num_new) % task.num_new + task.num_old
    noise = torch.randn(len(labels), 4, generator=Stream.root(task.index).torch_generator())
    return {"features": 10.0 * labels[:, None] + (1 + labels[:, None]) * noise, "labels": labels}


@pytest.fixture
def learned():
    """Prototypes after both tasks."""
    made = Prototypes(4)
    for task in TASKS:
        made.add_task(task, *features_of(task).values())
    return made


def of_class(label):
    task = TASKS[label >= 3]
    found = features_of(task)
    return found["features"][found["labels"] == label].double().numpy()


# -- what is stored ---------------------------------------------------------------------------------


def test_every_class_has_the_mean_of_its_features(learned):
    assert learned.means.shape == (5, 4)
    for label in range(5):
        means = [sum(column) / 6 for column in zip(*of_class(label).tolist(), strict=True)]
        assert learned.means[label].tolist() == pytest.approx(means, rel=1e-4)


def test_the_radius_is_that_of_the_base_classes(learned):
    traces = [np.trace(np.cov(of_class(label).T, bias=True)) / 4 for label in range(3)]
    assert learned.radius.item() == pytest.approx(math.sqrt(sum(traces) / 3), rel=1e-5)


def test_it_is_fixed_after_the_base_task_and_so_are_old_prototypes():
    made = Prototypes(4)
    made.add_task(TASKS[0], *features_of(TASKS[0]).values())
    before = {name: value.clone() for name, value in made.state_dict().items()}
    made.add_task(TASKS[1], *features_of(TASKS[1]).values())
    assert torch.equal(made.radius, before["radius"])
    assert torch.equal(made.means[:3], before["means"])


def test_one_image_of_a_class_is_its_prototype_without_spread():
    made = Prototypes(4)
    made.add_task(TASKS[0], *features_of(TASKS[0], each=1).values())
    assert torch.equal(made.means, features_of(TASKS[0], each=1)["features"])
    assert made.radius == 0  # not NaN


def test_they_are_saved_and_loaded_into_fresh_ones(learned):
    fresh = Prototypes(4)
    fresh.load_state_dict(learned.state_dict())
    for name in ("means", "radius"):
        assert torch.equal(getattr(fresh, name), getattr(learned, name))


# -- what is generated ---------------------------------------------------------------------------


def test_labels_are_drawn_uniformly_from_the_old_classes(learned):
    labels, _ = learned.replay(BATCH, TASKS[1], 3000)
    counts = torch.bincount(labels, minlength=5).tolist()
    assert counts[3:] == [0, 0]
    assert counts[:3] == [pytest.approx(1000, abs=100)] * 3


def test_without_spread_the_prototypes_themselves_are_generated(learned):
    labels, features = learned.replay(BATCH, TASKS[1], 20)
    assert features.tolist() == [learned.means[label].tolist() for label in labels]


def test_noise_is_as_wide_as_the_base_classes(learned):
    labels, features = learned.noisy_replay(BATCH, TASKS[1], 6000)
    assert torch.equal(labels, learned.replay(BATCH, TASKS[1], 6000)[0])
    for label in range(3):
        rows, width = features[labels == label], learned.radius.expand(4)
        torch.testing.assert_close(rows.mean(0), learned.means[label], rtol=0, atol=0.1 * width.max().item())
        torch.testing.assert_close(rows.std(0), width, rtol=0.1, atol=0)


def test_with_a_radius_every_coordinate_has_noise_of_its_own(learned):
    labels, features = learned.noisy_replay(BATCH, TASKS[1], 6000)
    apart = torch.corrcoef((features - learned.means[labels]).T) - torch.eye(4)
    assert apart.abs().max() < 0.05


def test_a_steps_draws_decide_and_another_steps_are_others(learned):
    other = Batch(BATCH.inputs, BATCH.labels, Draws(Stream.root(0).child("next")), 4)
    one, same, another = (learned.noisy_replay(batch, TASKS[1], 8)[1] for batch in (BATCH, BATCH, other))
    assert torch.equal(one, same)
    assert not torch.equal(one, another)


# -- in place of a generator -----------------------------------------------------------------------


def test_the_generator_replays_the_means():
    generator = PrototypeOptions().create(4, Stream.root(0), Placement(), FidelityOptions())
    for task in TASKS:
        generator.begin_task(task)
        generator.add_classes(task.num_new, Stream.root(0))
        found = features_of(task)
        plan = generator.learn(task, CachedFeatures.from_pass(found, len(found["labels"])), {}, None, Stream.root(0))
        assert list(plan) == [], "nothing is trained"
    found, expected = generator.replay(BATCH, TASKS[1], 8), generator.network.replay(BATCH, TASKS[1], 8)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert generator.role == "prototypes"
    assert generator.sample(torch.tensor([0, 1]), None) is None, "all samples of a class would be the same"


def test_prototypes_can_neither_forget_a_class_nor_learn_more_of_it():
    generator = PrototypeOptions().create(4, Stream.root(0), Placement(), FidelityOptions())
    with pytest.raises(EtagError, match="cannot forget a class: choose kind=cvae"):
        generator.remove_class(0)
    with pytest.raises(EtagError, match="cannot learn more images of known classes: choose kind=cvae"):
        _ = generator.update_training


def test_b4_replays_the_means_of_its_trained_solvers_features(lab):
    laboratory = lab("b4")
    laboratory.learn(0)
    images, method = laboratory.task(0).train, laboratory.method
    features = laboratory.engine.run_pass(method.features_pass("again", images))["features"]
    for label in range(3):
        expected = features[images.labels == label].double().mean(0)
        torch.testing.assert_close(method.generator.network.means[label].double(), expected, rtol=1e-4, atol=1e-6)
    laboratory.learn(1)
    assert method.generator.network.means.shape == (5, method.solver.backbone.feature_size)
