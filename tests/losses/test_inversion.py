"""ABD's losses of made images: against plain arithmetic, at their zero, and their gradients."""

import math

import pytest
import torch

from etag.core.random import Stream
from etag.losses.inversion import class_balance, confidence, roughness, statistics_divergence


def numbers(*shape, key="a"):
    return torch.randn(*shape, dtype=torch.float64, generator=Stream.root(0).generator(key, *shape))


def test_confidence_is_the_cross_entropy_with_the_own_answer(naive):
    logits = numbers(6, 4)
    answers = [max(range(4), key=row.__getitem__) for row in naive.rows(logits)]
    expected = naive.cross_entropy(logits / 1000, answers)
    assert confidence(logits, 1000.0).item() == pytest.approx(expected, rel=1e-12)
    sure = torch.tensor([[1e6, 0.0], [0.0, 1e6]])
    assert confidence(sure, 1.0).item() == 0


def test_balance_is_0_where_classes_are_equally_frequent_and_1_where_one_has_all(naive):
    assert class_balance(torch.zeros(5, 4)).item() == pytest.approx(0, abs=1e-6)
    assert class_balance(1e6 * torch.eye(4)).item() == pytest.approx(0, abs=1e-6), "over the batch, not each row"
    one = torch.zeros(5, 4)
    one[:, 2] = 1e6
    assert class_balance(one).item() == 1, "and not NaN, although p is 0 elsewhere"
    assert class_balance(torch.zeros(5, 1)).item() == 0
    logits = numbers(6, 4)
    rows = [[math.exp(value) for value in naive.log_softmax(row)] for row in naive.rows(logits)]
    share = [sum(column) / 6 for column in zip(*rows, strict=True)]
    expected = 1 + sum(p * math.log(p) for p in share) / math.log(4)
    assert class_balance(logits).item() == pytest.approx(expected, rel=1e-12)


def test_statistics_diverge_as_gaussians_do():
    mean, wanted_mean = numbers(3), numbers(3, key="b")
    variance, wanted_variance = numbers(3, key="c").square() + 0.1, numbers(3, key="d").square() + 0.1
    gaussian = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(
        gaussian(wanted_mean, wanted_variance.sqrt()), gaussian(mean, variance.sqrt())
    ).mean()
    found = statistics_divergence(mean, variance, wanted_mean, wanted_variance)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_statistics_that_agree_diverge_by_0_and_pull_nowhere():
    mean, variance = numbers(3).requires_grad_(), (numbers(3, key="b").square() + 0.1).requires_grad_()
    found = statistics_divergence(mean, variance, mean.detach(), variance.detach())
    found.backward()
    assert found.item() == pytest.approx(0, abs=1e-12)
    assert mean.grad.abs().max() < 1e-12
    assert variance.grad.abs().max() < 1e-12


def test_roughness_is_what_a_blur_takes_away(naive):
    images = numbers(2, 3, 6, 7)
    values = naive.rows(images)
    line = [math.exp(-((x / 2) ** 2)) for x in range(-2, 3)]
    total = sum(line)

    def reflected(place, size):
        return -place if place < 0 else 2 * size - 2 - place if place >= size else place

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
    assert roughness(images).item() == pytest.approx(sum(squares) / len(squares), rel=1e-10)
    assert roughness(torch.full((2, 3, 8, 8), 0.7)).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    "loss", [lambda x: confidence(x.flatten(1), 3.0), lambda x: class_balance(x.flatten(1)), roughness]
)
def test_gradients(loss):
    assert torch.autograd.gradcheck(loss, numbers(3, 1, 4, 4).requires_grad_())
