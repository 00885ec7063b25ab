"""BI-R's network: its gates, its Gaussian priors, and growth."""

import pytest
import torch

from etag.core.random import Stream
from etag.models.initial import build
from etag.models.replay_network import ReplayNetwork


def network(*classes, silent=0.7):
    net = build(lambda: ReplayNetwork(6, latent=3, hidden=10, silent=silent), Stream.root(0).torch_generator("network"))
    for number, count in enumerate(classes):
        net.grow(count, Stream.root(0).torch_generator("grow", number))
    return net


def numbers(*shape, key="a"):
    return torch.randn(*shape, generator=Stream.root(0).torch_generator(key, *shape))


def test_gates_silence_a_fixed_share_of_units_per_class_and_do_not_change():
    net = network(3)
    assert (net.gate.masks.sum(1) == 3).all()
    assert not torch.equal(net.gate.masks, net.gate_in.masks)
    assert len({tuple(row.tolist()) for row in net.gate.masks}) > 1, "different units for each class"
    before = net.gate.masks.clone()
    shares, codes = torch.eye(3), numbers(3, 3)
    assert torch.equal(net.decode(codes, shares), net.decode(codes, shares))
    net.grow(2, Stream.root(0).torch_generator("more"))
    assert torch.equal(net.gate.masks[:3], before)
    assert len(net.gate.masks) == 5


def test_gates_are_saved_with_the_weights():
    one, other = network(3), build(lambda: ReplayNetwork(6, 3, 10), Stream.root(1).torch_generator("other"))
    other.grow(3, Stream.root(1).torch_generator("grow"))
    assert not torch.equal(one.gate.masks, other.gate.masks)
    other.load_state_dict(one.state_dict())
    codes = numbers(3, 3)
    assert torch.equal(one.decode(codes, torch.eye(3)), other.decode(codes, torch.eye(3)))


@torch.no_grad()
def test_silent_units_do_not_affect_the_output():
    net, codes, shares = network(3, silent=0.5), numbers(4, 3), torch.eye(3)[[0, 1, 2, 1]]
    net.decoder.bias.fill_(5.0)  # so that no unit is zero without a gate
    before = net.decode(codes, shares)
    only_class_0 = (net.gate.masks[1] == 0) & (net.gate.masks[0] == 1)
    net.decoder_out.weight[:, only_class_0] += 100.0
    after = net.decode(codes, shares)
    assert torch.equal(after[[1, 3]], before[[1, 3]])
    assert not torch.allclose(after[0], before[0])


@torch.no_grad()
def test_gates_are_averaged_by_class_shares():
    net, codes = network(2, silent=0.5), numbers(1, 3)
    halves = net.gate(torch.ones(1, 10), torch.tensor([[0.5, 0.5]]))
    torch.testing.assert_close(halves[0], net.gate.masks.mean(0))
    assert net.decode(codes, torch.tensor([[0.5, 0.5]])).shape == (1, 6)


@torch.no_grad()
@pytest.mark.parametrize("shares", [[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
def test_log_density_is_that_of_a_mixture_weighted_by_shares(shares):
    prior, codes, shares = network(3).prior, numbers(5, 3), torch.tensor([shares] * 5)
    densities = torch.stack(
        [
            torch.distributions.Normal(mean, (0.5 * log_variance).exp()).log_prob(codes).sum(1).exp()
            for mean, log_variance in zip(prior.means, prior.log_variances, strict=True)
        ],
        dim=1,
    )
    torch.testing.assert_close(prior.log_density(codes, shares), (densities * shares).sum(1).log())


def test_gradients_of_the_prior_are_finite_for_one_hot_shares():
    prior = network(3).prior
    prior.log_density(numbers(5, 3), torch.eye(3)[[0, 1, 0, 1, 0]]).sum().backward()
    assert torch.isfinite(prior.means.grad).all()
    assert prior.means.grad[2].abs().sum() == 0
    assert prior.means.grad[:2].abs().sum() > 0


@torch.no_grad()
def test_codes_are_samples_of_the_gaussian_of_their_class():
    prior, labels, noise = network(3).prior, torch.tensor([2, 0]), numbers(2, 3)
    expected = prior.means[labels] + prior.log_variances[labels].exp().sqrt() * noise
    torch.testing.assert_close(prior.codes(labels, noise), expected)


@torch.no_grad()
def test_growing_does_not_change_logits_and_priors_of_old_classes():
    net, features = network(3), numbers(4, 6)
    before = net.classify(features), net.prior.means.clone()
    net.grow(2, Stream.root(0).torch_generator("more"))
    torch.testing.assert_close(net.classify(features)[:, :3], before[0])  # a wider product may round differently
    assert torch.equal(net.prior.means[:3], before[1])
    assert net.classify(features).shape == (4, 5)
