import pytest
import torch

from etag.core.random import Stream
from etag.losses.distillation import quadratic_penalty


def numbers(count, key="a"):
    return torch.randn(count, dtype=torch.float64, generator=Stream.root(0).torch_generator(key, count))


def test_quadratic_penalty_is_half_the_weighted_squared_distance():
    weights, anchor, importance = numbers(7), numbers(7, key="b"), numbers(7, key="c").abs()
    rows = zip(weights.tolist(), anchor.tolist(), importance.tolist(), strict=True)
    expected = sum(i * (w - a) ** 2 / 2 for w, a, i in rows)
    assert quadratic_penalty(weights, anchor, importance).item() == pytest.approx(expected, rel=1e-12)


def test_the_gradient_is_the_importance_times_the_difference():
    weights, anchor, importance = numbers(7).requires_grad_(), numbers(7, key="b"), numbers(7, key="c").abs()
    importance[3] = 0
    quadratic_penalty(weights, anchor, importance).backward()
    expected = [i * (w - a) for w, a, i in zip(weights.tolist(), anchor.tolist(), importance.tolist(), strict=True)]
    assert weights.grad.tolist() == pytest.approx(expected, rel=1e-12)
    assert weights.grad[3] == 0  # unimportant weights are free


def test_the_penalty_and_its_gradient_are_zero_at_the_anchor():
    weights = numbers(7).requires_grad_()
    loss = quadratic_penalty(weights, weights.detach().clone(), numbers(7, key="c").abs())
    loss.backward()
    assert loss == 0
    assert torch.count_nonzero(weights.grad) == 0
