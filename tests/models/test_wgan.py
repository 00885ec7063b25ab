import numpy as np
import pytest
import torch

from etag.core.random import Stream
from etag.models.initial import build
from etag.models.wgan import ConditionalWGAN


def numbers(*shape, key="x"):
    return torch.randn(*shape, generator=Stream.root(0).torch_generator(key, *shape))


def wgan(*blocks, features=6, latent=3, hidden=8, seed=0):
    network = build(lambda: ConditionalWGAN(features, latent, hidden), Stream.root(seed).torch_generator("wgan"))
    for number, classes in enumerate(blocks):
        network.grow(classes, Stream.root(seed).torch_generator("grow", number))
    return network


def enlarged(network, scale=10.0):
    """Return the network with larger weights; with the initial ones all outputs are near zero."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(scale).add_(0.1 * numbers(*parameter.shape, key="bias"))
    return network


LABELS = torch.tensor([0, 2, 1, 2, 0])


def leaky(values):
    return np.where(values > 0, values, 0.2 * values)


def test_the_generator_has_two_leaky_relu_layers_and_a_relu_layer(naive):
    network = enlarged(wgan(2, 1)).double()
    codes, g = numbers(5, 3).double(), network.generator
    hidden = leaky(naive.linear(g.second, leaky(naive.conditional(g.first, codes.numpy(), LABELS))))
    expected = np.maximum(naive.linear(g.last, hidden), 0)
    assert 0 < np.count_nonzero(expected) < expected.size
    torch.testing.assert_close(network.decode(codes, LABELS).detach(), torch.from_numpy(expected))


def test_the_critic_adds_a_class_projection_to_a_linear_score(naive):
    network = enlarged(wgan(2, 1)).double()
    features, c = numbers(5, 6).double(), network.critic
    hidden = leaky(naive.linear(c.second, leaky(naive.linear(c.first, features.numpy()))))
    vectors = naive.matrix(*(block.weight for block in c.classes))
    expected = naive.linear(c.score, hidden)[:, 0] + np.sum(vectors[LABELS.numpy()] * hidden, axis=1)
    result = c(features, LABELS)
    assert result.shape == (5,)
    torch.testing.assert_close(result.detach(), torch.from_numpy(expected))


def test_generated_features_are_never_negative():
    generated = enlarged(wgan(3)).decode(10 * numbers(200, 3), torch.arange(200) % 3)
    assert generated.shape == (200, 6)
    assert generated.min() == 0
    assert generated.max() > 0


@pytest.mark.parametrize("classes", [1, 4])
def test_growing_does_not_change_features_and_scores_of_old_classes(classes):
    network, codes, features = wgan(3), numbers(9, 3), numbers(9, 6)
    old, new = torch.arange(9) % 3, torch.full((9,), 3)
    before = network.decode(codes, old), network.critic(features, old)
    network.grow(classes, Stream.root(0).torch_generator("more"))
    assert torch.equal(network.decode(codes, old), before[0])
    assert torch.equal(network.critic(features, old), before[1])
    assert not torch.equal(network.decode(codes, new), before[0])
    assert not torch.equal(network.critic(features, new), before[1])


def test_generator_and_critic_depend_on_the_class():
    network = wgan(3)
    zero, one = torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.long)
    codes, features = numbers(4, 3), numbers(4, 6)
    assert not torch.equal(network.generator.first(codes, zero), network.generator.first(codes, one))
    assert not torch.equal(network.critic(features, zero), network.critic(features, one))


def test_the_initial_weights_depend_on_the_stream_only():
    before = torch.get_rng_state()
    one, same, other = wgan(2, 1), wgan(2, 1), wgan(2, 1, seed=1)
    assert torch.equal(torch.get_rng_state(), before)  # the global generator is not used
    assert all(torch.equal(value, same.state_dict()[key]) for key, value in one.state_dict().items())
    assert not torch.equal(one.critic.first.weight, other.critic.first.weight)
    assert not torch.equal(one.critic.classes[0].weight, other.critic.classes[0].weight)


def test_layers_have_small_normal_initial_weights():
    network = wgan(100, features=64, hidden=64)
    layers = (network.generator.second, network.generator.last, network.critic.first, network.critic.second)
    for layer in layers:
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert (
            layer.weight.abs().max() > 0.05
        )  # beyond the range of a uniform distribution with this standard deviation
        assert torch.count_nonzero(layer.bias) == 0


def test_the_default_sizes_are_those_of_gfr():
    network = ConditionalWGAN(512)
    network.grow(100, Stream.root(0).torch_generator())
    generator = (200 + 100) * 512 + 512 + 2 * (512 * 512 + 512)
    critic = 2 * (512 * 512 + 512) + 513 + 100 * 512
    assert sum(parameter.numel() for parameter in network.generator.parameters()) == generator
    assert sum(parameter.numel() for parameter in network.critic.parameters()) == critic
