"""A normal distribution per class: its moments, and what is drawn from it."""

import numpy as np
import pytest
import torch

from etag.core.random import Draws, Placement, Stream
from etag.core.scenario import Task
from etag.core.work import Batch
from etag.methods.parts.gaussians import JITTER, ClassGaussians

TASKS = [Task(index, old, new, None, None, num_base=3) for index, (old, new) in enumerate([(0, 3), (3, 2)])]


def features_of(task, each=30):
    labels = torch.arange(each * task.num_new) % task.num_new + task.num_old
    noise = torch.randn(len(labels), 4, generator=Stream.root(task.index).torch_generator())
    mixed = noise @ torch.tensor([[1.0, 0.5, 0, 0], [0, 1, 0.5, 0], [0, 0, 1, 0.5], [0, 0, 0, 0.1]])
    return 10.0 * labels[:, None] + (1 + labels[:, None]) * mixed, labels


@pytest.fixture
def learned():
    made = ClassGaussians(4)
    for task in TASKS:
        made.add_task(task, *features_of(task))
    return made


def batch(purpose="step", placement=None):
    draws = Draws(Stream.root(0).child(purpose), placement or Placement())
    return Batch(torch.zeros(4, 1), torch.zeros(4).long(), draws, 4)


def test_every_class_has_the_mean_and_the_covariance_of_its_features(learned):
    for label in range(5):
        features, labels = features_of(TASKS[label >= 3])
        own = features[labels == label].double().numpy()
        np.testing.assert_allclose(learned.means[label], own.mean(0), rtol=1e-5)
        covariance = (learned.factors[label] @ learned.factors[label].T).numpy()
        np.testing.assert_allclose(covariance, np.cov(own.T) + JITTER * np.eye(4), rtol=1e-4, atol=1e-4)


def test_fewer_images_than_numbers_in_a_feature_are_enough_and_even_one():
    for each in (1, 2):
        made = ClassGaussians(4)
        made.add_task(TASKS[0], *features_of(TASKS[0], each))
        assert made.factors.isfinite().all()


def test_what_is_drawn_has_the_mean_and_the_covariance_of_its_class(learned):
    labels, features = learned.replay(batch(), TASKS[1], 30_000)
    assert set(labels.tolist()) == {0, 1, 2}
    for label in range(3):
        rows, spread = features[labels == label], (1 + label)
        torch.testing.assert_close(rows.mean(0), learned.means[label], rtol=0, atol=0.06 * spread)
        covariance = learned.factors[label] @ learned.factors[label].T
        torch.testing.assert_close(torch.cov(rows.T), covariance, rtol=0, atol=0.1 * spread**2)


def test_a_sample_is_the_mean_and_the_factor_times_the_noise(learned):
    labels, noise = torch.tensor([4, 0, 4]), torch.randn(3, 4, generator=Stream.root(1).torch_generator())
    found = learned.sample(labels, noise)
    for row, label, z in zip(found, labels, noise, strict=True):
        torch.testing.assert_close(row, learned.means[label] + learned.factors[label] @ z)
    assert torch.equal(learned.sample(labels, torch.zeros(3, 4)), learned.means[labels])


def test_two_processes_draw_the_two_halves_of_what_one_draws(learned):
    whole = learned.replay(batch(), TASKS[1], 12)
    halves = [learned.replay(batch(placement=Placement(rank=rank, world=2)), TASKS[1], 12) for rank in range(2)]
    for part in range(2):
        torch.testing.assert_close(torch.cat([half[part] for half in halves]), whole[part])  # products may round


def test_a_move_changes_the_means_and_nothing_else(learned):
    before = {name: value.clone() for name, value in learned.state_dict().items()}
    learned.move(torch.ones(5, 4))
    assert torch.equal(learned.means, before["means"] + 1)
    assert torch.equal(learned.factors, before["factors"])


def test_they_are_saved_and_loaded_into_fresh_ones(learned):
    fresh = ClassGaussians(4)
    fresh.load_state_dict(learned.state_dict())
    assert torch.equal(fresh.means, learned.means)
    assert torch.equal(fresh.factors, learned.factors)
