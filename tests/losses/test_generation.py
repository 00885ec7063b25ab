import pytest
import torch

from etag.core.random import Stream
from etag.losses.generation import (
    generator_weights,
    prior_divergence,
    reparameterize,
    sampled_divergence,
    squared_error,
)


def numbers(*shape, key="a"):
    return torch.randn(*shape, dtype=torch.float64, generator=Stream.root(0).generator(key, *shape))


# -- KL to the prior -------------------------------------------------------------------------------


def test_the_divergence_from_the_prior_has_a_closed_form(naive):
    mean, log_variance = numbers(5, 3), numbers(5, 3, key="b")
    expected = naive.prior_divergence(mean, log_variance)
    assert prior_divergence(mean, log_variance).item() == pytest.approx(expected, rel=1e-12)
    inputs = (mean.requires_grad_(), log_variance.requires_grad_())
    assert torch.autograd.gradcheck(prior_divergence, inputs)


def test_the_divergence_is_what_sampling_finds():
    mean, log_variance = torch.tensor([[0.5]]), torch.tensor([[-1.0]])
    q = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    codes = mean + (0.5 * log_variance).exp() * torch.randn(200_000, 1, generator=Stream.root(0).generator())
    found = (q.log_prob(codes) - torch.distributions.Normal(0, 1).log_prob(codes)).mean()
    assert prior_divergence(mean, log_variance).item() == pytest.approx(found.item(), abs=5e-3)


def test_the_prior_itself_has_no_divergence_and_no_gradient():
    mean, log_variance = (torch.zeros(4, 3, requires_grad=True) for _ in range(2))
    loss = prior_divergence(mean, log_variance)
    loss.backward()
    assert loss == 0
    assert torch.count_nonzero(mean.grad) == torch.count_nonzero(log_variance.grad) == 0


# -- sampling --------------------------------------------------------------------------------------


def test_a_sample_is_the_mean_plus_noise_times_the_deviation():
    mean, log_variance, noise = numbers(4, 3), numbers(4, 3, key="b"), numbers(4, 3, key="c")
    sample = reparameterize(mean, log_variance, noise)
    for place in [(row, column) for row in range(4) for column in range(3)]:
        deviation = 2.718281828459045 ** (log_variance[place].item() / 2)
        assert sample[place].item() == pytest.approx(mean[place].item() + deviation * noise[place].item(), rel=1e-12)
    assert torch.equal(reparameterize(mean, log_variance, torch.zeros(4, 3)), mean)


def test_gradients_pass_through_the_sample():
    mean, log_variance = numbers(4, 3).requires_grad_(), numbers(4, 3, key="b").requires_grad_()
    reparameterize(mean, log_variance, numbers(4, 3, key="c")).sum().backward()
    assert (mean.grad == 1).all()
    assert (log_variance.grad != 0).all()
    assert torch.autograd.gradcheck(lambda m, v: reparameterize(m, v, numbers(4, 3, key="c")), (mean, log_variance))


# -- -log p ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("half", "per_row", "factor"),
    [(True, True, 1 / 8), (False, True, 1 / 4), (True, False, 0.5), (False, False, 1)],
)
def test_the_squared_error_in_all_its_forms(naive, half, per_row, factor):
    made, wanted = numbers(4, 6), numbers(4, 6, key="b")
    expected = factor * sum(naive.squares(made, wanted))
    assert squared_error(made, wanted, half, per_row).item() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: squared_error(x, wanted, half, per_row), made.requires_grad_())


def test_by_default_it_is_the_log_likelihood_of_a_unit_gaussian():
    made, wanted = numbers(4, 6), numbers(4, 6, key="b")
    unit = torch.distributions.Normal(made, 1.0)
    minus_log_p = -(unit.log_prob(wanted) - unit.log_prob(made)).sum(1).mean()  # without the constant
    torch.testing.assert_close(squared_error(made, wanted), minus_log_p)


def test_what_is_made_right_costs_nothing():
    made = numbers(4, 6).requires_grad_()
    loss = squared_error(made, made.detach().clone())
    loss.backward()
    assert loss == 0
    assert torch.count_nonzero(made.grad) == 0


# -- Eqs. (6), (10) --------------------------------------------------------------------------------


def test_equation_6_is_a_plain_sum():
    plain = {"kl": 1, "recon": 1, "guide": 1, "guide_old": 0, "match": 0}
    assert generator_weights(0.0) == plain  # the base task: there is nothing old to match
    assert generator_weights(0.0, 5.0) == plain
    assert generator_weights(0.0, 0.0, normalize=True, guide_old=True) == plain  # in the release too


@pytest.mark.parametrize(
    ("options", "guide", "guide_old"),
    [
        ({}, 1, 0),
        ({"normalize": True}, 1 / 6, 0),
        ({"guide_old": True}, 1, 5 / 6),
        ({"normalize": True, "guide_old": True}, 1 / 6, 5 / 6),
    ],
)
def test_equation_10_weighs_old_knowledge_by_lambda(options, guide, guide_old):
    weights = generator_weights(0.7, 5.0, **options)
    assert weights == pytest.approx({"kl": 1, "recon": 1, "guide": guide, "guide_old": guide_old, "match": 0.7})
    unguided = generator_weights(0.7, 5.0, guidance=False, **options)
    assert unguided == pytest.approx({"kl": 1, "recon": 1, "guide": 0, "guide_old": 0, "match": 0.7})


def test_the_sampled_divergence_is_log_q_less_log_p_and_right_on_average():
    generator = torch.Generator().manual_seed(0)
    mean, log_variance = torch.randn(1, 3, generator=generator), torch.randn(1, 3, generator=generator)
    noise = torch.randn(200_000, 3, generator=generator)
    codes = reparameterize(mean, log_variance, noise)
    normal = torch.distributions.Normal(0.0, 1.0)
    found = sampled_divergence(noise, log_variance, normal.log_prob(codes).sum(1))
    posterior = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    expected = (posterior.log_prob(codes).sum(1) - normal.log_prob(codes).sum(1)).mean()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found, prior_divergence(mean, log_variance), rtol=2e-2, atol=0)


def test_the_sampled_divergence_of_a_posterior_that_is_the_prior_is_zero():
    noise, log_variance = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(1, 3)
    prior = torch.distributions.Normal(0.0, 1.0).log_prob(noise).sum(1)
    assert sampled_divergence(noise, log_variance, prior).item() == pytest.approx(0, abs=1e-6)
