from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tests.methods.test_closed_form import frozen, inverses  # noqa: F401
from tests.methods.test_ridge import all_features

from etag.methods import closed_form
from etag.methods.registry import METHODS


def naive_scores(x, labels, classes, tied, power, first, second):
    """Minus half the squared Mahalanobis distances of the method's paper, one number at a time where it helps."""
    x = np.maximum(x, 0) ** power
    means = [x[labels == label].mean(0) for label in range(classes)]
    covariances = [np.cov(x[labels == label].T) for label in range(classes)]
    if tied:
        within = sum(np.outer(row - means[label], row - means[label]) for row, label in zip(x, labels, strict=True))
        covariances = classes * [within / (len(x) - classes)]
    columns = []
    for mean, covariance in zip(means, covariances, strict=True):
        size = len(covariance)
        off = [covariance[i, j] for i in range(size) for j in range(size) if i != j]
        shrunk = covariance + first * np.diag(covariance).mean() * np.eye(size)
        shrunk = shrunk + second * np.mean(off) * (1 - np.eye(size))
        deviation = np.sqrt(np.diag(shrunk))
        inverse = np.linalg.inv(shrunk / np.outer(deviation, deviation))
        columns.append([-0.5 * (row - mean) @ inverse @ (row - mean) for row in x])
    return np.array(columns).T


@pytest.mark.parametrize(("covariance", "power"), [("per_class", 0.5), ("tied", 0.5), ("per_class", 1.0)])
def test_scores_are_mahalanobis_distances_with_shrunk_correlations(frozen, covariance, power):  # noqa: F811
    options = {"covariance": covariance, "power": power, "variance_shrinkage": 0.7, "covariance_shrinkage": 0.4}
    made = frozen("fecam", options, images=16)
    made.learn(0, 1)
    x, labels = all_features(made, 2)
    expected = naive_scores(x, labels, 5, covariance == "tied", power, 0.7, 0.4)
    found = made.method.rule(torch.from_numpy(x).float()).double().numpy()
    if covariance == "tied":  # what does not depend on the class is left out
        expected, found = expected - expected[:, :1], found - found[:, :1]
    np.testing.assert_allclose(found, expected, rtol=5e-3, atol=5e-3)


def test_the_default_has_a_covariance_per_class_and_says_so():
    options = METHODS["fecam"].Options(name="fecam")
    assert (options.statistics, options.covariance) == ("per_class", "per_class")


def test_matrices_of_old_classes_are_not_computed_again(frozen, monkeypatch):  # noqa: F811
    made, calls = frozen("fecam", images=16), []
    original = made.method.inverse
    monkeypatch.setattr(made.method, "inverse", lambda covariance: calls.append(0) or original(covariance))
    made.learn(0, 1)
    assert len(calls) == 3 + 2
    task = made.task(1)
    made.learner.train(replace(task, train=task.train.select((task.train.labels == 3).nonzero().flatten())), None, 2)
    assert len(calls) == 3 + 2 + 1, "more images of one class"
    del calls[-1]
    first = inverses(made.method.rule)
    made.method.forget(0)
    assert len(calls) == 3 + 2 + 4
    torch.testing.assert_close(inverses(made.method.rule), first[1:])


def test_more_classes_than_there_is_memory_for_share_one_covariance(frozen, monkeypatch):  # noqa: F811
    """Before anything grows too large, and as if the covariance had been tied from the start."""
    made, tied = frozen("fecam", images=16), frozen("fecam", {"covariance": "tied"}, images=16)
    monkeypatch.setattr(closed_form, "MAX_BYTES", 4 * made.method.statistics.bytes_with(1))
    made.learn(0)
    assert made.method.statistics.per_class
    assert "statistics" not in made.method.remarks()
    made.learn(1)
    tied.learn(0, 1)
    assert "too much memory" in made.method.remarks()["statistics"]
    torch.testing.assert_close(inverses(made.method.rule), inverses(tied.method.rule), rtol=1e-4, atol=1e-5)
    rebuilt = type(made.method)(made.method.options, made.context)
    rebuilt.build_after(made.method.task_sizes)
    rebuilt.statistics.load_state_dict(made.method.statistics.state_dict())
    assert not rebuilt.statistics.per_class
    assert "per_class" not in made.method.forget(0), "the option would not help"


def test_few_images_need_little_memory(frozen):  # noqa: F811
    """A class of n images has a covariance of rank n - 1; one direction more is that of the shrinkage."""
    made = frozen("fecam", images=6)
    made.learn(0)
    size, per_class = made.method.rule.size, made.scenario.tasks[0].train.labels.bincount().max()
    assert per_class < size
    assert made.method.rule.directions.shape == (3, size, per_class)


def test_classes_of_one_image_have_no_covariance(frozen):  # noqa: F811
    """Distances to them are Euclidean: their correlations are those of the identity."""
    made = frozen("fecam", images=16)
    task = made.task(0)
    first = [int((task.train.labels == label).nonzero()[0]) for label in range(3)]
    made.learner.train(replace(task, train=task.train.select(torch.tensor(first))))
    torch.testing.assert_close(inverses(made.method.rule), torch.eye(made.method.rule.size).expand(3, -1, -1))


def test_covariances_cannot_be_shrunk_more_than_variances():
    with pytest.raises(ValidationError, match="may not be larger than variance_shrinkage"):
        METHODS["fecam"].Options(name="fecam", variance_shrinkage=0.1, covariance_shrinkage=0.2)
    with pytest.raises(ValidationError, match="greater than or equal to"):
        METHODS["fecam"].Options(name="fecam", variance_shrinkage=1e-4, covariance_shrinkage=0)
