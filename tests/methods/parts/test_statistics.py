import numpy as np
import pytest
import torch

from etag.core.random import Draws, Stream
from etag.core.work import Batch
from etag.methods.parts.statistics import ClassStatistics, StatisticsCollector, inverse_of_sum, shrunk, solve

SIZE, CLASSES = 5, 3


class Identity(torch.nn.Module):
    def forward(self, inputs):
        return inputs


def features(rows=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (rows,), generator=generator)
    return torch.randn(rows, SIZE, generator=generator) + labels[:, None], labels


def sums(inputs, labels, present, per_class, transform=lambda rows: rows):
    batch = Batch(inputs, labels, Draws(Stream.root(0)), len(inputs))
    return StatisticsCollector(Identity(), present, per_class, transform)(batch)


def statistics(inputs, labels, per_class=False, pieces=1):
    made = ClassStatistics(SIZE, per_class)
    made.grow(CLASSES)
    for rows in torch.arange(len(labels)).chunk(pieces):
        present = sorted(set(labels[rows].tolist()))
        made.add(present, sums(inputs[rows], labels[rows], present, per_class))
    return made


@pytest.mark.parametrize("per_class", [False, True])
def test_sums_equal_a_naive_loop(per_class):
    inputs, labels = features()
    made = statistics(inputs, labels, per_class)
    x = inputs.numpy().astype(np.float64)
    for label in range(CLASSES):
        rows = x[labels.numpy() == label]
        assert made.count[label] == len(rows)
        np.testing.assert_allclose(made.means[label], rows.mean(0), rtol=1e-12)
        if per_class:
            np.testing.assert_allclose(made.covariance(label), np.cov(rows.T), rtol=1e-10)
    np.testing.assert_allclose(made.moment_of_all, sum(np.outer(row, row) for row in x), rtol=1e-12)
    within = sum(
        np.outer(row - x[labels == label].mean(0), row - x[labels == label].mean(0))
        for row, label in zip(x, labels.tolist(), strict=True)
    )
    np.testing.assert_allclose(made.scatter, within, rtol=1e-9, atol=1e-9)
    assert made.count.dtype == made.total.dtype == made.moment.dtype == torch.float64


@pytest.mark.parametrize("per_class", [False, True])
def test_the_order_and_the_pieces_do_not_matter(per_class):
    inputs, labels = features()
    whole = statistics(inputs, labels, per_class)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    pieces = statistics(inputs[order], labels[order], per_class, pieces=7)
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(pieces.state_dict()[name], value, rtol=1e-12, atol=1e-12)


def test_a_forgotten_class_leaves_nothing_with_moments_per_class():
    inputs, labels = features()
    made = statistics(inputs, labels, per_class=True)
    assert made.remove_class(1)
    never = statistics(inputs[labels != 1], labels[labels != 1], per_class=True)
    for name, value in made.state_dict().items():
        torch.testing.assert_close(value, never.state_dict()[name][[0, 2]], rtol=1e-12, atol=1e-12)


def test_with_shared_moments_only_the_scatter_of_a_forgotten_class_is_left():
    inputs, labels = features()
    made, before = statistics(inputs, labels), statistics(inputs, labels)
    assert not made.remove_class(1)
    torch.testing.assert_close(made.means, before.means[[0, 2]])
    torch.testing.assert_close(made.scatter, before.scatter)
    moved = inputs + 100.0 * (labels == 1)[:, None]  # another mean of the forgotten class leaves the same
    other = statistics(moved, labels)
    other.remove_class(1)
    torch.testing.assert_close(other.moment, made.moment, rtol=1e-6, atol=1e-5)


def test_sums_survive_saving():
    inputs, labels = features()
    made = statistics(inputs, labels)
    again = ClassStatistics(SIZE)
    again.load_state_dict(made.state_dict())
    assert torch.equal(again.moment, made.moment)
    assert torch.equal(again.count, made.count)


def test_what_is_summed_can_be_transformed():
    inputs, labels = features()
    squares = sums(inputs, labels, [0, 1, 2], False, torch.square)
    torch.testing.assert_close(squares["total"].sum(0), inputs.double().square().sum(0))


def test_shrinking_keeps_the_trace_and_ends_at_a_multiple_of_the_identity():
    rows = torch.randn(30, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    covariance = rows.T.cov()
    assert torch.equal(shrunk(covariance, 0.0), covariance)
    torch.testing.assert_close(shrunk(covariance, 0.3).trace(), covariance.trace())
    torch.testing.assert_close(shrunk(covariance, 1.0), covariance.trace() / SIZE * torch.eye(SIZE).double())
    torch.testing.assert_close(covariance @ solve(covariance, torch.eye(SIZE).double()), torch.eye(SIZE).double())


@pytest.mark.parametrize("per_class", [False, True])
def test_a_collector_adds_up_its_batches(per_class):
    inputs, labels = features()
    collector = StatisticsCollector(Identity(), range(CLASSES), per_class, lambda x: x)
    for rows in torch.arange(len(labels)).chunk(5):
        found = collector(Batch(inputs[rows], labels[rows], None, len(rows)))
    for name, value in sums(inputs, labels, range(CLASSES), per_class).items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12)


def test_classes_that_share_their_moments_have_the_sum_of_them():
    inputs, labels = features()
    made, shared = statistics(inputs, labels, per_class=True), statistics(inputs, labels)
    assert made.bytes_with(2) == (CLASSES + 2) * SIZE**2 * 8
    made.share()
    assert not made.per_class
    assert made.bytes_with(2) == SIZE**2 * 8
    for name, value in shared.state_dict().items():
        torch.testing.assert_close(made.state_dict()[name], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 4, 40])
@pytest.mark.parametrize("b", [0.0, 0.3, -0.05])
def test_the_inverse_of_a_sum(rows, b):
    inputs = features(rows)[0].double()
    covariance = (inputs - inputs.mean(0)).T @ (inputs - inputs.mean(0)) / rows
    c, ones = torch.tensor(0.7).double(), torch.ones(SIZE, SIZE).double()
    directions, weights = inverse_of_sum(covariance, c, torch.tensor(b).double())
    assert directions.shape == (SIZE, min(rows - 1, SIZE) + 1)
    found = torch.eye(SIZE).double() / c - (directions * weights) @ directions.T
    torch.testing.assert_close(found @ (covariance + c * torch.eye(SIZE) + b * ones), torch.eye(SIZE).double())
