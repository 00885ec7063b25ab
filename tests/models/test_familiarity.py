"""Familiarity: how much nearer a feature is to its nearest class than to all images together."""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional

from etag.models.familiarity import Familiarity
from etag.models.structure import build_empty, describe

COUNTS = [12, 5, 30]


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def statistics(size=6):
    """Class means, numbers of images, and a covariance within classes."""
    root = numbers(size, size, seed=1)
    return 2 * numbers(len(COUNTS), size) + 3, torch.tensor(COUNTS).double(), root @ root.T / size + torch.eye(size)


def fitted(size=6):
    familiarity = Familiarity(size)
    familiarity.fit(*statistics(size))
    return familiarity


def naive(features, means, counts, covariance):
    """The two distances of the definition, with the full covariance matrices."""
    features, means, counts, covariance = (np.asarray(value) for value in (features, means, counts, covariance))
    mean = sum(count * row for count, row in zip(counts, means, strict=True)) / counts.sum()
    between = sum(count * np.outer(row - mean, row - mean) for count, row in zip(counts, means, strict=True))
    within, of_all = np.linalg.inv(covariance), np.linalg.inv(covariance + between / counts.sum())
    return [
        (x - mean) @ of_all @ (x - mean) - min((x - center) @ within @ (x - center) for center in means)
        for x in features
    ]


def test_it_is_the_difference_of_two_mahalanobis_distances():
    features = 4 * numbers(20, 6, seed=2)
    found = fitted()(features.float())
    np.testing.assert_allclose(found, naive(features, *statistics()), rtol=1e-4, atol=1e-4)


def test_a_class_mean_is_familiar_and_what_lies_between_or_beyond_is_not():
    (means, *_), familiarity = statistics(), fitted()
    at_means = familiarity(means.float())
    elsewhere = torch.cat([means.mean(0)[None], 4 * means - 3 * means.mean(0)]).float()
    assert at_means.min() > familiarity(elsewhere).max()


def test_it_is_built_again_from_its_description():
    familiarity, features = fitted(), numbers(4, 6).float()
    again = build_empty(json.loads(json.dumps(describe(familiarity))))
    again.load_state_dict(familiarity.state_dict())
    assert torch.equal(again(features), familiarity(features))
    again.check(len(COUNTS))


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3])
def test_classes_that_do_not_vary_do_no_harm(scale):
    familiarity = Familiarity(6)
    familiarity.fit(scale * numbers(3, 6), torch.ones(3).double(), torch.zeros(6, 6).double())
    assert familiarity(scale * numbers(9, 6, seed=3).float()).isfinite().all()


@pytest.mark.parametrize("name", ["weight", "bias", "distances", "mixing"])
def test_tensors_of_another_number_of_classes_are_refused(name):
    familiarity = fitted()
    familiarity.store(**{name: functional.pad(getattr(familiarity, name), (0, 1))})
    with pytest.raises(ValueError, match=f"'familiarity.{name}' has the shape"):
        familiarity.check(len(COUNTS))
    with pytest.raises(ValueError, match="but"):
        fitted().check(len(COUNTS) + 1)
