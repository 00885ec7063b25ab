import math

import pytest
import torch

from etag.core.random import Stream
from etag.losses.generation import (
    critic_loss,
    gradient_penalty,
    prior_divergence,
    reparameterize,
    sampled_divergence,
    squared_error,
)


def numbers(*shape, key="a"):
    return torch.randn(*shape, dtype=torch.float64, generator=Stream.root(0).torch_generator(key, *shape))


# -- KL to the prior -------------------------------------------------------------------------------


def test_prior_divergence_equals_its_closed_form(naive):
    mean, log_variance = numbers(5, 3), numbers(5, 3, key="b")
    expected = naive.prior_divergence(mean, log_variance)
    assert prior_divergence(mean, log_variance).item() == pytest.approx(expected, rel=1e-12)
    inputs = (mean.requires_grad_(), log_variance.requires_grad_())
    assert torch.autograd.gradcheck(prior_divergence, inputs)


def test_prior_divergence_equals_an_estimate_by_sampling():
    mean, log_variance = torch.tensor([[0.5]]), torch.tensor([[-1.0]])
    q = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    codes = mean + (0.5 * log_variance).exp() * torch.randn(200_000, 1, generator=Stream.root(0).torch_generator())
    result = (q.log_prob(codes) - torch.distributions.Normal(0, 1).log_prob(codes)).mean()
    assert prior_divergence(mean, log_variance).item() == pytest.approx(result.item(), abs=5e-3)


def test_prior_divergence_and_its_gradient_are_zero_at_the_prior():
    mean, log_variance = (torch.zeros(4, 3, requires_grad=True) for _ in range(2))
    loss = prior_divergence(mean, log_variance)
    loss.backward()
    assert loss == 0
    assert torch.count_nonzero(mean.grad) == torch.count_nonzero(log_variance.grad) == 0


# -- sampling --------------------------------------------------------------------------------------


def test_reparameterize_adds_noise_times_the_standard_deviation_to_the_mean():
    mean, log_variance, noise = numbers(4, 3), numbers(4, 3, key="b"), numbers(4, 3, key="c")
    sample = reparameterize(mean, log_variance, noise)
    for index in [(row, column) for row in range(4) for column in range(3)]:
        deviation = 2.718281828459045 ** (log_variance[index].item() / 2)
        assert sample[index].item() == pytest.approx(mean[index].item() + deviation * noise[index].item(), rel=1e-12)
    assert torch.equal(reparameterize(mean, log_variance, torch.zeros(4, 3)), mean)


def test_reparameterize_passes_gradients():
    mean, log_variance = numbers(4, 3).requires_grad_(), numbers(4, 3, key="b").requires_grad_()
    reparameterize(mean, log_variance, numbers(4, 3, key="c")).sum().backward()
    assert (mean.grad == 1).all()
    assert (log_variance.grad != 0).all()
    assert torch.autograd.gradcheck(lambda m, v: reparameterize(m, v, numbers(4, 3, key="c")), (mean, log_variance))


# -- -log p ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("half", "mean_over_rows", "factor"),
    [(True, True, 1 / 8), (False, True, 1 / 4), (True, False, 0.5), (False, False, 1)],
)
def test_squared_error_in_all_its_forms(naive, half, mean_over_rows, factor):
    generated, target = numbers(4, 6), numbers(4, 6, key="b")
    expected = factor * sum(naive.squares(generated, target))
    assert squared_error(generated, target, half, mean_over_rows).item() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(
        lambda x: squared_error(x, target, half, mean_over_rows), generated.requires_grad_()
    )


def test_squared_error_is_by_default_the_log_likelihood_of_a_unit_gaussian():
    generated, target = numbers(4, 6), numbers(4, 6, key="b")
    unit = torch.distributions.Normal(generated, 1.0)
    minus_log_p = -(unit.log_prob(target) - unit.log_prob(generated)).sum(1).mean()  # without the constant
    torch.testing.assert_close(squared_error(generated, target), minus_log_p)


def test_squared_error_and_its_gradient_are_zero_for_equal_features():
    generated = numbers(4, 6).requires_grad_()
    loss = squared_error(generated, generated.detach().clone())
    loss.backward()
    assert loss == 0
    assert torch.count_nonzero(generated.grad) == 0


def test_sampled_divergence_is_log_q_minus_log_p_and_unbiased():
    generator = torch.Generator().manual_seed(0)
    mean, log_variance = torch.randn(1, 3, generator=generator), torch.randn(1, 3, generator=generator)
    noise = torch.randn(200_000, 3, generator=generator)
    codes = reparameterize(mean, log_variance, noise)
    normal = torch.distributions.Normal(0.0, 1.0)
    result = sampled_divergence(noise, log_variance, normal.log_prob(codes).sum(1))
    posterior = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    expected = (posterior.log_prob(codes).sum(1) - normal.log_prob(codes).sum(1)).mean()
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(result, prior_divergence(mean, log_variance), rtol=2e-2, atol=0)


def test_sampled_divergence_is_zero_for_a_posterior_equal_to_the_prior():
    noise, log_variance = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(1, 3)
    prior = torch.distributions.Normal(0.0, 1.0).log_prob(noise).sum(1)
    assert sampled_divergence(noise, log_variance, prior).item() == pytest.approx(0, abs=1e-6)


# -- critic loss -----------------------------------------------------------------------------------


def test_critic_loss_lowers_scores_of_generated_and_raises_those_of_real_features():
    real, generated = numbers(4).requires_grad_(), numbers(6, key="b").requires_grad_()
    loss = critic_loss(real, generated)
    loss.backward()
    assert loss.item() == pytest.approx(sum(generated.tolist()) / 6 - sum(real.tolist()) / 4, rel=1e-12)
    assert real.grad.tolist() == pytest.approx([-1 / 4] * 4)
    assert generated.grad.tolist() == pytest.approx([1 / 6] * 6)


def test_critic_loss_is_zero_for_equal_scores():
    scores = numbers(4)
    assert critic_loss(scores, scores.clone()) == 0


# -- gradient penalty ------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0.25, 1.0, 3.0])
def test_gradient_penalty_of_a_linear_critic_is_its_slope_minus_one_squared(length):
    weights = torch.nn.functional.normalize(numbers(5), dim=0).mul(length).requires_grad_()
    points = numbers(6, 5, key="b").requires_grad_()
    loss = gradient_penalty(points @ weights, points)
    loss.backward()
    assert loss.item() == pytest.approx((length - 1) ** 2, abs=1e-12)
    expected = 2 * (length - 1) / length * weights.detach()
    torch.testing.assert_close(weights.grad, expected, atol=1e-12, rtol=1e-9)  # a gradient of a gradient


def test_gradient_penalty_is_zero_for_a_critic_of_unit_slope():
    points = numbers(6, 5).requires_grad_()
    assert gradient_penalty(points[:, 2] + 7, points).item() == 0


def test_gradient_penalty_uses_the_slope_at_each_point():
    points = numbers(6, 5).requires_grad_()
    result = gradient_penalty((points**3 / 3).sum(1), points)  # whose gradient is the square of every coordinate
    slopes = [math.sqrt(sum(value**4 for value in row)) for row in points.tolist()]
    assert result.item() == pytest.approx(sum((slope - 1) ** 2 for slope in slopes) / 6, rel=1e-12)


def test_gradient_penalty_is_differentiated_through_the_layers_of_the_critic():
    first, second, points = numbers(4, 5, key="f"), numbers(4, key="s"), numbers(6, 5, key="b").requires_grad_()
    inputs = (first.requires_grad_(), second.requires_grad_())
    assert torch.autograd.gradcheck(lambda f, s: gradient_penalty((points @ f.T).tanh() @ s, points), inputs)
    loss = gradient_penalty((points @ first.T).tanh() @ second, points)
    assert all(gradient.any() for gradient in torch.autograd.grad(loss, inputs))


def test_gradient_penalty_of_a_constant_critic_has_a_finite_gradient():
    weights, points = torch.zeros(5, requires_grad=True), torch.ones(6, 5, requires_grad=True)
    loss = gradient_penalty(points @ weights, points)
    loss.backward()
    assert loss == 1
    assert weights.grad.isfinite().all()
