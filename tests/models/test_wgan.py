import numpy as np
import pytest
import torch

from etag.core.random import Stream
from etag.models.initial import build
from etag.models.wgan import ConditionalWGAN


def numbers(*shape, key="x"):
    return torch.randn(*shape, generator=Stream.root(0).generator(key, *shape))


def wgan(*blocks, features=6, latent=3, hidden=8, seed=0):
    made = build(lambda: ConditionalWGAN(features, latent, hidden), Stream.root(seed).generator("wgan"))
    for number, classes in enumerate(blocks):
        made.grow(classes, Stream.root(seed).generator("grow", number))
    return made


def sized(made, scale=10.0):
    """With larger weights: as they begin, all is near zero."""
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(scale).add_(0.1 * numbers(*parameter.shape, key="bias"))
    return made


LABELS = torch.tensor([0, 2, 1, 2, 0])


def leaky(values):
    return np.where(values > 0, values, 0.2 * values)


def test_the_generator_is_two_leaky_layers_and_a_rectified_one(naive):
    made = sized(wgan(2, 1)).double()
    codes, g = numbers(5, 3).double(), made.generator
    hidden = leaky(naive.linear(g.second, leaky(naive.conditional(g.first, codes.numpy(), LABELS))))
    expected = np.maximum(naive.linear(g.last, hidden), 0)
    assert 0 < np.count_nonzero(expected) < expected.size
    torch.testing.assert_close(made.decode(codes, LABELS).detach(), torch.from_numpy(expected))


def test_the_critic_adds_the_classs_projection_to_a_linear_answer(naive):
    made = sized(wgan(2, 1)).double()
    features, c = numbers(5, 6).double(), made.critic
    hidden = leaky(naive.linear(c.second, leaky(naive.linear(c.first, features.numpy()))))
    vectors = naive.matrix(*(block.weight for block in c.classes))
    expected = naive.linear(c.answer, hidden)[:, 0] + np.sum(vectors[LABELS.numpy()] * hidden, axis=1)
    found = c(features, LABELS)
    assert found.shape == (5,)
    torch.testing.assert_close(found.detach(), torch.from_numpy(expected))


def test_made_features_are_never_negative():
    made = sized(wgan(3)).decode(10 * numbers(200, 3), torch.arange(200) % 3)
    assert made.shape == (200, 6)
    assert made.min() == 0
    assert made.max() > 0


@pytest.mark.parametrize("classes", [1, 4])
def test_growth_leaves_what_is_made_and_said_of_old_classes_unchanged(classes):
    made, codes, features = wgan(3), numbers(9, 3), numbers(9, 6)
    old, new = torch.arange(9) % 3, torch.full((9,), 3)
    before = made.decode(codes, old), made.critic(features, old)
    made.grow(classes, Stream.root(0).generator("more"))
    assert torch.equal(made.decode(codes, old), before[0])
    assert torch.equal(made.critic(features, old), before[1])
    assert not torch.equal(made.decode(codes, new), before[0])
    assert not torch.equal(made.critic(features, new), before[1])


def test_the_class_matters_to_both():
    made = wgan(3)
    zero, one = torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.long)
    codes, features = numbers(4, 3), numbers(4, 6)
    assert not torch.equal(made.generator.first(codes, zero), made.generator.first(codes, one))
    assert not torch.equal(made.critic(features, zero), made.critic(features, one))


def test_a_stream_makes_the_same_network_again_and_another_stream_another():
    before = torch.get_rng_state()
    one, same, other = wgan(2, 1), wgan(2, 1), wgan(2, 1, seed=1)
    assert torch.equal(torch.get_rng_state(), before)  # the global generator is left alone
    assert all(torch.equal(value, same.state_dict()[key]) for key, value in one.state_dict().items())
    assert not torch.equal(one.critic.first.weight, other.critic.first.weight)
    assert not torch.equal(one.critic.classes[0].weight, other.critic.classes[0].weight)


def test_plain_layers_begin_with_small_normal_weights():
    made = wgan(100, features=64, hidden=64)
    layers = (made.generator.second, made.generator.last, made.critic.first, made.critic.second)
    for layer in layers:
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert layer.weight.abs().max() > 0.05  # further out than a uniform distribution of that deviation goes
        assert torch.count_nonzero(layer.bias) == 0


def test_the_sizes_are_gfrs_by_default():
    made = ConditionalWGAN(512)
    made.grow(100, Stream.root(0).generator())
    generator = (200 + 100) * 512 + 512 + 2 * (512 * 512 + 512)
    critic = 2 * (512 * 512 + 512) + 513 + 100 * 512
    assert sum(parameter.numel() for parameter in made.generator.parameters()) == generator
    assert sum(parameter.numel() for parameter in made.critic.parameters()) == critic
