"""BI-R's network: gates that stay, Gaussians that grow, and what they are worth."""

import pytest
import torch

from etag.core.random import Stream
from etag.models.initial import build
from etag.models.replay_network import ReplayNetwork


def network(*classes, silent=0.7):
    made = build(lambda: ReplayNetwork(6, latent=3, hidden=10, silent=silent), Stream.root(0).generator("network"))
    for number, count in enumerate(classes):
        made.grow(count, Stream.root(0).generator("grow", number))
    return made


def numbers(*shape, key="a"):
    return torch.randn(*shape, generator=Stream.root(0).generator(key, *shape))


def test_gates_silence_so_many_units_of_each_class_and_stay_as_they_are():
    made = network(3)
    assert (made.gate.masks.sum(1) == 3).all()
    assert not torch.equal(made.gate.masks, made.gate_in.masks)
    assert len({tuple(row.tolist()) for row in made.gate.masks}) > 1, "other ones for each class"
    before = made.gate.masks.clone()
    shares, codes = torch.eye(3), numbers(3, 3)
    assert torch.equal(made.decode(codes, shares), made.decode(codes, shares))
    made.grow(2, Stream.root(0).generator("more"))
    assert torch.equal(made.gate.masks[:3], before)
    assert len(made.gate.masks) == 5


def test_gates_are_saved_with_the_weights():
    one, other = network(3), build(lambda: ReplayNetwork(6, 3, 10), Stream.root(1).generator("other"))
    other.grow(3, Stream.root(1).generator("grow"))
    assert not torch.equal(one.gate.masks, other.gate.masks)
    other.load_state_dict(one.state_dict())
    codes = numbers(3, 3)
    assert torch.equal(one.decode(codes, torch.eye(3)), other.decode(codes, torch.eye(3)))


@torch.no_grad()
def test_silent_units_have_no_say():
    made, codes, shares = network(3), numbers(4, 3), torch.eye(3)[[0, 1, 2, 1]]
    made.decoder.bias.fill_(5.0)  # no unit is silent of itself
    before = made.decode(codes, shares)
    others_only = (made.gate.masks[1] == 0) & (made.gate.masks[0] == 1)
    made.decoder_out.weight[:, others_only] += 100.0
    after = made.decode(codes, shares)
    assert torch.equal(after[[1, 3]], before[[1, 3]])
    assert not torch.allclose(after[0], before[0])


@torch.no_grad()
def test_half_a_class_opens_its_gates_by_half():
    made, codes = network(2, silent=0.5), numbers(1, 3)
    halves = made.gate(torch.ones(1, 10), torch.tensor([[0.5, 0.5]]))
    torch.testing.assert_close(halves[0], made.gate.masks.mean(0))
    assert made.decode(codes, torch.tensor([[0.5, 0.5]])).shape == (1, 6)


@torch.no_grad()
@pytest.mark.parametrize("shares", [[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
def test_the_prior_is_a_mixture_by_shares(shares):
    prior, codes, shares = network(3).prior, numbers(5, 3), torch.tensor([shares] * 5)
    each = torch.stack(
        [
            torch.distributions.Normal(mean, (0.5 * log_variance).exp()).log_prob(codes).sum(1).exp()
            for mean, log_variance in zip(prior.means, prior.log_variances, strict=True)
        ],
        dim=1,
    )
    torch.testing.assert_close(prior.log_density(codes, shares), (each * shares).sum(1).log())


def test_the_prior_of_a_known_class_learns_without_a_nan():
    prior = network(3).prior
    prior.log_density(numbers(5, 3), torch.eye(3)[[0, 1, 0, 1, 0]]).sum().backward()
    assert torch.isfinite(prior.means.grad).all()
    assert prior.means.grad[2].abs().sum() == 0
    assert prior.means.grad[:2].abs().sum() > 0


@torch.no_grad()
def test_codes_of_a_class_are_those_of_its_gaussian():
    prior, labels, noise = network(3).prior, torch.tensor([2, 0]), numbers(2, 3)
    expected = prior.means[labels] + prior.log_variances[labels].exp().sqrt() * noise
    torch.testing.assert_close(prior.codes(labels, noise), expected)


@torch.no_grad()
def test_growing_leaves_what_was_known():
    made, features = network(3), numbers(4, 6)
    before = made.classify(features), made.prior.means.clone()
    made.grow(2, Stream.root(0).generator("more"))
    assert torch.equal(made.classify(features)[:, :3], before[0])
    assert torch.equal(made.prior.means[:3], before[1])
    assert made.classify(features).shape == (4, 5)
