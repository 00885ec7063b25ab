"""A normal distribution per class: its moments, and what is drawn from it."""

import numpy as np
import pytest
import torch
from tests.methods.test_fecam import naive_scores

from etag.core.random import Draws, Placement, Stream
from etag.core.scenario import Task
from etag.core.work import Batch
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.drift import least_squares_map
from etag.methods.parts.fidelity import FidelityOptions
from etag.methods.parts.gaussians import JITTER, ClassGaussians, GaussianOptions
from etag.methods.parts.generators import normal_sampler

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


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_distances_to_the_distributions_are_fecams(power):
    """FeCAM computes them from the statistics of the features, here they come from the stored factors."""
    made, every = ClassGaussians(4, power=power), [skewed(task, 30) for task in TASKS]
    for task, (features, labels) in zip(TASKS, every, strict=True):
        made.add_task(task, features, labels)
    x, labels = (torch.cat(part).double().numpy() for part in zip(*every, strict=True))
    expected = naive_scores(x, labels, 5, False, power, 1.0, 1.0)
    found = made.rule()(torch.from_numpy(x).float()).double().numpy()
    np.testing.assert_allclose(found, expected, rtol=5e-3, atol=5e-3)


# -- of features raised to a power ----------------------------------------------------------------


def skewed(task, each=400):
    """Features that are squares of normal ones: their roots are normal."""
    features, labels = features_of(task, each)
    return (features.abs() + 1).square(), labels


def test_with_a_power_the_distributions_are_those_of_the_raised_features():
    made, plain = ClassGaussians(4, power=0.5), ClassGaussians(4)
    features, labels = skewed(TASKS[0])
    made.add_task(TASKS[0], features, labels)
    plain.add_task(TASKS[0], features.sqrt(), labels)
    torch.testing.assert_close(made.means, plain.means)
    torch.testing.assert_close(made.factors, plain.factors)
    rows, noise = torch.tensor([2, 0, 2]), torch.randn(3, 4, generator=Stream.root(1).torch_generator())
    torch.testing.assert_close(made.sample(rows, noise), plain.sample(rows, noise).clamp(min=0).square())


def test_skewed_features_are_drawn_truer_with_the_power_that_makes_them_normal():
    features, labels = skewed(TASKS[0])
    real = features[labels == 1]

    def error(power):
        made = ClassGaussians(4, power=power)
        made.add_task(TASKS[0], features, labels)
        noise = torch.randn(4000, 4, generator=Stream.root(2).torch_generator())
        drawn = made.sample(torch.ones(4000, dtype=torch.long), noise)
        shares = torch.linspace(0.05, 0.95, 19)
        return (drawn.quantile(shares, 0) / real.quantile(shares, 0) - 1).abs().mean().item()

    assert error(0.5) < 0.5 * error(1.0)


def test_negative_features_count_as_zero_with_a_power():
    made = ClassGaussians(2, power=0.5)
    made.add_task(
        Task(0, 0, 1, None, None, num_base=1), torch.tensor([[-4.0, 4.0], [4.0, 16.0]]), torch.zeros(2).long()
    )
    assert made.means.tolist() == [[1.0, 3.0]]


# -- in place of a generator ------------------------------------------------------------------------


def generator_of(signed=False, **options):
    made = GaussianOptions(**options).create(4, Stream.root(0), Placement(), FidelityOptions(), signed=signed)
    for task in TASKS:
        features, labels = skewed(task, 30)
        cached = CachedFeatures.from_pass({"features": features, "labels": labels}, len(labels))
        assert list(made.learn(task, cached, {}, None, Stream.root(0))) == [], "nothing is trained"
    return made


def test_the_generator_draws_from_the_distributions_of_all_classes():
    made = generator_of()
    assert made.role == "gaussians"
    labels = torch.tensor([4, 1])
    found = made.sample(labels, normal_sampler(Stream.root(3), 2, torch.device("cpu")))
    noise = torch.randn(2, 4, generator=Stream.root(3).torch_generator("gaussians"))
    assert torch.equal(found, made.network.sample(labels, noise))
    assert (found >= 0).all()


def test_features_that_may_be_negative_are_not_raised():
    made = generator_of(signed=True)
    features, labels = skewed(TASKS[0], 30)
    torch.testing.assert_close(made.network.means[1], features[labels == 1].mean(0))


def test_a_class_can_be_forgotten():
    made, before = generator_of(), generator_of()
    made.remove_class(1)
    rest = [0, 2, 3, 4]
    assert torch.equal(made.network.means, before.network.means[rest])
    assert torch.equal(made.network.factors, before.network.factors[rest])


def test_means_and_covariances_follow_the_map_of_raised_features(lab):
    """The map is learned on raised features of both backbones: by least squares it is known in closed form."""
    drift = {"map": "least_squares", "passes": 0, "ridge": 1e-2}
    generator = {"kind": "gaussians", "drift": drift}
    follows, stays = lab("b4", {"generator": generator}), lab("b4", {"generator": "gaussians"})
    images = follows.task(1).train

    def pass_over(laboratory):
        method = laboratory.method
        return laboratory.engine.run_pass(method.features_pass("again", images))["features"].float().sqrt()

    for laboratory in (follows, stays):
        laboratory.learn(0)
    old = pass_over(follows)
    for laboratory in (follows, stays):
        laboratory.learn(1)
    new, moved, fixed = pass_over(follows), follows.method.generator.network, stays.method.generator.network
    matrix = least_squares_map(old, new, 1e-2)
    torch.testing.assert_close(moved.means[:3], fixed.means[:3] @ matrix.T, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(moved.factors[:3], matrix @ fixed.factors[:3], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(moved.means[:3], fixed.means[:3], rtol=1e-3, atol=1e-4)
