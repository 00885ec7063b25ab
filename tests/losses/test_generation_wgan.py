import math

import pytest
import torch

from etag.core.random import Stream
from etag.losses.generation import critic_loss, gradient_penalty


def numbers(*shape, key="a"):
    return torch.randn(*shape, dtype=torch.float64, generator=Stream.root(0).generator(key, *shape))


# -- the critic ------------------------------------------------------------------------------------


def test_the_critic_lowers_what_is_made_and_raises_what_is_real():
    real, made = numbers(4).requires_grad_(), numbers(6, key="b").requires_grad_()
    loss = critic_loss(real, made)
    loss.backward()
    assert loss.item() == pytest.approx(sum(made.tolist()) / 6 - sum(real.tolist()) / 4, rel=1e-12)
    assert real.grad.tolist() == pytest.approx([-1 / 4] * 4)
    assert made.grad.tolist() == pytest.approx([1 / 6] * 6)


def test_a_critic_that_can_not_tell_has_no_loss():
    said = numbers(4)
    assert critic_loss(said, said.clone()) == 0


# -- its penalty -----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0.25, 1.0, 3.0])
def test_the_penalty_of_a_linear_critic_is_its_slope_less_one_squared(length):
    weights = torch.nn.functional.normalize(numbers(5), dim=0).mul(length).requires_grad_()
    at = numbers(6, 5, key="b").requires_grad_()
    loss = gradient_penalty(at @ weights, at)
    loss.backward()
    assert loss.item() == pytest.approx((length - 1) ** 2, abs=1e-12)
    expected = 2 * (length - 1) / length * weights.detach()
    torch.testing.assert_close(weights.grad, expected, atol=1e-12, rtol=1e-9)  # a gradient of a gradient


def test_a_critic_of_unit_slope_everywhere_is_not_penalized():
    at = numbers(6, 5).requires_grad_()
    assert gradient_penalty(at[:, 2] + 7, at).item() == 0


def test_each_point_has_a_slope_of_its_own():
    at = numbers(6, 5).requires_grad_()
    found = gradient_penalty((at**3 / 3).sum(1), at)  # whose gradient is the square of every coordinate
    slopes = [math.sqrt(sum(value**4 for value in row)) for row in at.tolist()]
    assert found.item() == pytest.approx(sum((slope - 1) ** 2 for slope in slopes) / 6, rel=1e-12)


def test_the_penalty_is_differentiated_through_the_critics_layers():
    first, second, at = numbers(4, 5, key="f"), numbers(4, key="s"), numbers(6, 5, key="b").requires_grad_()
    inputs = (first.requires_grad_(), second.requires_grad_())
    assert torch.autograd.gradcheck(lambda f, s: gradient_penalty((at @ f.T).tanh() @ s, at), inputs)
    loss = gradient_penalty((at @ first.T).tanh() @ second, at)
    assert all(gradient.any() for gradient in torch.autograd.grad(loss, inputs))


def test_a_critic_that_says_the_same_everywhere_gives_no_nan():
    weights, at = torch.zeros(5, requires_grad=True), torch.ones(6, 5, requires_grad=True)
    loss = gradient_penalty(at @ weights, at)
    loss.backward()
    assert loss == 1
    assert weights.grad.isfinite().all()
