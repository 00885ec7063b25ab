"""ABD's losses on generated images: against naive computations, at zero, and their gradients."""

import math

import pytest
import torch

from etag.core.random import Stream
from etag.losses.inversion import class_imbalance, confidence_loss, smoothness_penalty, statistics_divergence


def numbers(*shape, key="a"):
    return torch.randn(*shape, dtype=torch.float64, generator=Stream.root(0).torch_generator(key, *shape))


def test_confidence_is_the_cross_entropy_with_the_most_likely_class(naive):
    logits = numbers(6, 4)
    predictions = [max(range(4), key=row.__getitem__) for row in naive.rows(logits)]
    expected = naive.cross_entropy(logits / 1000, predictions)
    assert confidence_loss(logits, 1000.0).item() == pytest.approx(expected, rel=1e-12)
    certain = torch.tensor([[1e6, 0.0], [0.0, 1e6]])
    assert confidence_loss(certain, 1.0).item() == 0


def test_class_balance_is_0_for_equal_shares_and_1_for_a_single_class(naive):
    assert class_imbalance(torch.zeros(5, 4)).item() == pytest.approx(0, abs=1e-6)
    assert class_imbalance(1e6 * torch.eye(4)).item() == pytest.approx(0, abs=1e-6), "over the batch, not per row"
    one = torch.zeros(5, 4)
    one[:, 2] = 1e6
    assert class_imbalance(one).item() == 1, "and not NaN, although p is 0 elsewhere"
    assert class_imbalance(torch.zeros(5, 1)).item() == 0
    logits = numbers(6, 4)
    rows = [[math.exp(value) for value in naive.log_softmax(row)] for row in naive.rows(logits)]
    share = [sum(column) / 6 for column in zip(*rows, strict=True)]
    expected = 1 + sum(p * math.log(p) for p in share) / math.log(4)
    assert class_imbalance(logits).item() == pytest.approx(expected, rel=1e-12)


def test_statistics_divergence_is_the_divergence_of_gaussians():
    mean, target_mean = numbers(3), numbers(3, key="b")
    variance, target_variance = numbers(3, key="c").square() + 0.1, numbers(3, key="d").square() + 0.1
    gaussian = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(
        gaussian(target_mean, target_variance.sqrt()), gaussian(mean, variance.sqrt())
    ).mean()
    result = statistics_divergence(mean, variance, target_mean, target_variance)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=0)


def test_statistics_divergence_and_its_gradient_are_zero_for_equal_statistics():
    mean, variance = numbers(3).requires_grad_(), (numbers(3, key="b").square() + 0.1).requires_grad_()
    result = statistics_divergence(mean, variance, mean.detach(), variance.detach())
    result.backward()
    assert result.item() == pytest.approx(0, abs=1e-12)
    assert mean.grad.abs().max() < 1e-12
    assert variance.grad.abs().max() < 1e-12


def test_smoothness_penalty_is_the_squared_difference_to_the_blurred_image(naive):
    images = numbers(2, 3, 6, 7)
    values = naive.rows(images)
    line = [math.exp(-((x / 2) ** 2)) for x in range(-2, 3)]
    total = sum(line)

    def reflected(index, size):
        return -index if index < 0 else 2 * size - 2 - index if index >= size else index

    squares = []
    for image in values:
        for channel in image:
            for y in range(6):
                for x in range(7):
                    blurred = sum(
                        line[i + 2] * line[j + 2] / total**2 * channel[reflected(y + i, 6)][reflected(x + j, 7)]
                        for i in range(-2, 3)
                        for j in range(-2, 3)
                    )
                    squares.append((channel[y][x] - blurred) ** 2)
    assert smoothness_penalty(images).item() == pytest.approx(sum(squares) / len(squares), rel=1e-10)
    assert smoothness_penalty(torch.full((2, 3, 8, 8), 0.7)).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    "loss", [lambda x: confidence_loss(x.flatten(1), 3.0), lambda x: class_imbalance(x.flatten(1)), smoothness_penalty]
)
def test_gradients_are_correct(loss):
    assert torch.autograd.gradcheck(loss, numbers(3, 1, 4, 4).requires_grad_())
