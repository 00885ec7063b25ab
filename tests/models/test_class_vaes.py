"""VAEs side by side: each is what it would be alone, and their likelihoods are those of one image and one class."""

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
    return build(lambda: ClassVAEs(classes, FEATURES, LATENT, hidden=5), Stream.root(0).generator("vaes"))


def numbers(*shape, key="a"):
    return torch.randn(*shape, generator=Stream.root(0).generator(key, *shape))


def alone(vaes, part, c, x):
    layer = getattr(vaes, part)
    return functional.linear(x, layer.weight[c].T, layer.bias[c, 0])


def naive_log_likelihood(vaes, c, feature, noise):
    """One image, one class, one code at a time."""
    hidden = alone(vaes, "encoder", c, feature).relu()
    mean, log_variance = alone(vaes, "mean", c, hidden), alone(vaes, "log_variance", c, hidden)
    posterior = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    normal, found = torch.distributions.Normal(0.0, 1.0), []
    for row in noise:
        code = mean + row * (0.5 * log_variance).exp()
        made = alone(vaes, "decoder_out", c, alone(vaes, "decoder", c, code).relu())
        found.append(
            torch.distributions.Normal(made, 1.0).log_prob(feature).sum()
            + normal.log_prob(code).sum()
            - posterior.log_prob(code).sum()
        )
    return (torch.logsumexp(torch.stack(found), 0) - math.log(len(noise))).item()


@torch.no_grad()
@pytest.mark.parametrize("noise", [torch.zeros(1, LATENT), numbers(7, LATENT, key="noise")])
def test_likelihoods_are_those_of_one_image_and_one_class_at_a_time(noise):
    network, features = vaes(), numbers(5, FEATURES)
    expected = [[naive_log_likelihood(network, c, feature, noise) for c in range(4)] for feature in features]
    found = network.log_likelihoods(features, noise)
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-4)


@torch.no_grad()
def test_what_is_decoded_at_once_changes_nothing(monkeypatch):
    network, features, noise = vaes(), numbers(9, FEATURES), numbers(3, LATENT)
    at_once = network.log_likelihoods(features, noise)
    monkeypatch.setattr(class_vaes, "AT_ONCE", 4 * 3 * FEATURES * 2)  # two images
    torch.testing.assert_close(network.log_likelihoods(features, noise), at_once)


@torch.no_grad()
@pytest.mark.parametrize("samples", [1, 128, 256])
def test_where_codes_say_nothing_the_likelihood_is_that_of_a_gaussian(samples):
    """For a decoder without ears and a posterior that is the prior, whatever the number of samples."""
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


def test_one_input_serves_all_classes():
    network, features = vaes(), numbers(5, FEATURES)
    for shared, own in zip(network.encode(features), network.encode(features.expand(4, 5, FEATURES)), strict=True):
        assert torch.equal(shared, own)
