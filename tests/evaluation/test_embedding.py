import numpy as np
import pytest
import torch

from etag.core.random import Stream
from etag.evaluation.embedding import LEAST_ROWS, pick_rows, tsne

LABELS = torch.tensor([2, 0, 1, 0, 2, 2, 0, 1, 1, 2])


@pytest.mark.parametrize(("limit", "each"), [(3, 1), (6, 2), (8, 2), (9, 3)])
def test_as_many_rows_of_each_class_as_the_limit_allows(limit, each):
    rows = pick_rows(LABELS, limit)
    assert len(rows) <= limit
    for label in range(3):
        of_class = [row for row, y in enumerate(LABELS.tolist()) if y == label]
        assert [row for row in rows.tolist() if LABELS[row] == label] == of_class[:each]


def test_clusters_that_are_far_apart_stay_apart():
    labels = torch.arange(30) % 3
    noise = torch.randn(30, 5, generator=Stream.root(0).generator())
    plane = torch.tensor(tsne(100 * torch.eye(5)[labels] + noise, seed=0))
    assert plane.shape == (30, 2)
    distances = torch.cdist(plane, plane).fill_diagonal_(torch.inf)
    assert torch.equal(labels[distances.argmin(1)], labels)


def test_the_points_are_the_same_for_the_same_seed():
    features = torch.randn(12, 4, generator=Stream.root(0).generator())
    assert tsne(features, seed=1) == tsne(features, seed=1)


def test_the_least_number_of_rows_is_enough():
    assert len(tsne(torch.eye(LEAST_ROWS), seed=0)) == LEAST_ROWS


def test_equal_rows_and_single_features_have_points_too():
    assert tsne(np.ones((5, 3)), seed=0) == [[0.0, 0.0]] * 5
    assert np.isfinite(tsne(np.arange(6.0).reshape(6, 1), seed=0)).all()
