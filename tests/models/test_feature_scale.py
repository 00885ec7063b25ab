"""Standardizing features, and networks that generate features on a standardized scale."""

import pytest
import torch

from etag.core.random import Stream
from etag.models.cvae import ConditionalVAE, DecoderNoise
from etag.models.feature_scale import FeatureScale
from etag.models.initial import build
from etag.models.wgan import ConditionalWGAN

LABELS = torch.arange(40) % 3
NETWORKS = {"vae": ConditionalVAE, "wgan": ConditionalWGAN}


def numbers(*shape, key="x"):
    return torch.randn(*shape, generator=Stream.root(0).torch_generator(key, *shape))


def features():
    return (numbers(40, 4) * torch.tensor([1e-3, 1.0, 30.0, 2.0]) + torch.tensor([0.0, 5.0, -80.0, 1.0])).double()


def network(kind, **options):
    made = build(lambda: NETWORKS[kind](4, 3, 8, **options), Stream.root(0).torch_generator("network"))
    made.grow(3, Stream.root(0).torch_generator("grow"))
    return made.double()


def test_scaling_can_be_undone():
    scale = FeatureScale(4)
    scale.fit(features())
    torch.testing.assert_close(scale.inverse(scale(features())), features())
    torch.testing.assert_close(scale.inverse(torch.zeros(1, 4).double())[0], features().mean(0))


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("signed", [False, True])
def test_decoded_features_are_on_the_original_scale(kind, signed):
    plain, scaled = network(kind, signed=True), network(kind, standardize=True, signed=signed)
    scaled.scale.fit(features())
    codes = 3 * numbers(40, 3).double()
    with torch.no_grad():
        output, decoded = plain.decode(codes, LABELS), scaled.decode(codes, LABELS)
    deviation = features().std(0, correction=0)
    deviation = deviation.clamp(min=0.1 * deviation.mean().item())  # what hardly varies is not scaled up
    assert len(set(deviation.tolist())) > 2
    expected = output * deviation + features().mean(0)
    assert (expected < 0).any()
    torch.testing.assert_close(decoded, expected if signed else expected.clamp(min=0))


def test_the_encoder_sees_standardized_features():
    plain, scaled = network("vae"), network("vae", standardize=True)
    scaled.scale.fit(features())
    for one, other in zip(
        scaled.encode(features(), LABELS), plain.encode(scaled.scale(features()), LABELS), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_scale_is_saved_with_the_network_and_only_then(kind):
    assert not any("scale" in key for key in network(kind).state_dict())
    one, other = network(kind, standardize=True), network(kind, standardize=True)
    one.scale.fit(features())
    other.load_state_dict(one.state_dict())
    assert torch.equal(other.scale.deviation, one.scale.deviation)
    assert torch.equal(other.scale.mean, one.scale.mean)


def test_decoder_noise_of_signed_features_is_not_clamped():
    for signed in (False, True):
        noise = DecoderNoise(2, signed)
        noise.learn(torch.zeros(1, 2), torch.eye(2))
        added = noise.added(torch.zeros(50, 2), torch.zeros(50).long(), numbers(50, 2))
        assert bool((added < 0).any()) is signed
