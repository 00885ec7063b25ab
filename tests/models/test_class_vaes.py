"""ClassVAEs against a naive computation, one image and one class at a time."""

import math

import pytest
import torch
from torch.nn import functional

from etag.core.random import Stream
from etag.models import class_vaes
from etag.models.class_vaes import ClassVAEs
from etag.models.initial import build

FEATURES, LATENT = 6, 3


def vaes(classes=4):
    return build(lambda: ClassVAEs(classes, FEATURES, LATENT, hidden=5), Stream.root(0).torch_generator("vaes"))


def numbers(*shape, key="a"):
    return torch.randn(*shape, generator=Stream.root(0).torch_generator(key, *shape))


def layer_of_class(vaes, part, c, x):
    layer = getattr(vaes, part)
    return functional.linear(x, layer.weight[c].T, layer.bias[c, 0])


def naive_log_likelihood(vaes, c, feature, noise):
    """Return log p(f) of one image under one class, computed code by code."""
    hidden = layer_of_class(vaes, "encoder", c, feature).relu()
    mean, log_variance = layer_of_class(vaes, "mean", c, hidden), layer_of_class(vaes, "log_variance", c, hidden)
    posterior = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    normal, log_weights = torch.distributions.Normal(0.0, 1.0), []
    for row in noise:
        code = mean + row * (0.5 * log_variance).exp()
        generated = layer_of_class(vaes, "decoder_out", c, layer_of_class(vaes, "decoder", c, code).relu())
        log_weights.append(
            torch.distributions.Normal(generated, 1.0).log_prob(feature).sum()
            + normal.log_prob(code).sum()
            - posterior.log_prob(code).sum()
        )
    return (torch.logsumexp(torch.stack(log_weights), 0) - math.log(len(noise))).item()


@torch.no_grad()
@pytest.mark.parametrize("noise", [torch.zeros(1, LATENT), numbers(7, LATENT, key="noise")])
def test_log_likelihoods_equal_a_computation_one_image_and_class_at_a_time(noise):
    network, features = vaes(), numbers(5, FEATURES)
    expected = [[naive_log_likelihood(network, c, feature, noise) for c in range(4)] for feature in features]
    result = network.log_likelihoods(features, noise)
    torch.testing.assert_close(result, torch.tensor(expected), rtol=1e-5, atol=1e-4)


@torch.no_grad()
def test_the_chunk_size_does_not_change_the_likelihoods(monkeypatch):
    network, features, noise = vaes(), numbers(9, FEATURES), numbers(3, LATENT)
    in_one_chunk = network.log_likelihoods(features, noise)
    monkeypatch.setattr(class_vaes, "MAX_HIDDEN", 4 * 3 * FEATURES * 2)  # two images per chunk
    torch.testing.assert_close(network.log_likelihoods(features, noise), in_one_chunk)


@torch.no_grad()
@pytest.mark.parametrize("samples", [1, 128, 256])
def test_with_codes_that_have_no_effect_the_likelihood_is_that_of_a_gaussian(samples):
    """With a constant decoder and a posterior equal to the prior, for any number of samples."""
    network = vaes(2)
    for part in ("mean", "log_variance", "decoder_out"):
        getattr(network, part).weight.zero_()
        getattr(network, part).bias.zero_()
    network.decoder_out.bias[1] += 2.0
    features = numbers(4, FEATURES)
    expected = [
        torch.distributions.Normal(center, 1.0).log_prob(features).sum(1)
        for center in (torch.zeros(()), torch.tensor(2.0))
    ]
    torch.testing.assert_close(
        network.log_likelihoods(features, numbers(samples, LATENT)), torch.stack(expected, 1), rtol=1e-5, atol=1e-4
    )


def test_a_shared_input_equals_the_same_input_for_each_class():
    network, features = vaes(), numbers(5, FEATURES)
    for shared, own in zip(network.encode(features), network.encode(features.expand(4, 5, FEATURES)), strict=True):
        assert torch.equal(shared, own)
