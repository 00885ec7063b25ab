import pytest
import torch
from torch import nn

from etag.core.random import Stream
from etag.models.cvae import ConditionalLinear, ConditionalVAE, DecoderNoise
from etag.models.initial import build


def numbers(*shape, key="x"):
    return torch.randn(*shape, generator=Stream.root(0).torch_generator(key, *shape))


def vae(*blocks, features=6, latent=3, hidden=8):
    network = build(lambda: ConditionalVAE(features, latent, hidden), Stream.root(0).torch_generator("vae"))
    for number, classes in enumerate(blocks):
        network.grow(classes, Stream.root(0).torch_generator("grow", number))
    return network


def test_the_generator_of_the_paper_has_1_461_136_parameters():
    network = vae(100, features=512, latent=200, hidden=512)
    assert sum(parameter.numel() for parameter in network.parameters()) == 1_461_136
    in_blocks = vae(50, 10, 40, features=512, latent=200, hidden=512)
    assert sum(parameter.numel() for parameter in in_blocks.parameters()) == 1_461_136


def test_a_conditional_layer_equals_a_linear_layer_on_x_and_the_one_hot_label():
    layer = build(lambda: ConditionalLinear(4, 5), Stream.root(0).torch_generator("layer"))
    layer.grow(2, Stream.root(0).torch_generator(0))
    layer.grow(1, Stream.root(0).torch_generator(1))
    plain = nn.Linear(4 + 3, 5)
    with torch.no_grad():
        plain.weight.copy_(torch.cat([layer.linear.weight, layer.rows.T], dim=1))
        plain.bias.copy_(layer.linear.bias)
    x, labels = numbers(6, 4), torch.tensor([0, 1, 2, 2, 0, 1])
    one_hot = torch.zeros(6, 3)
    for row, label in enumerate(labels):
        one_hot[row, label] = 1
    torch.testing.assert_close(layer(x, labels), plain(torch.cat([x, one_hot], dim=1)))


def test_encode_and_decode_have_two_hidden_layers_with_relu(naive):
    network, relu = vae(2, 1).double(), lambda values: values.clamp_min(0)
    x, z, labels = numbers(5, 6).double(), numbers(5, 3).double(), torch.tensor([0, 2, 1, 2, 0])

    def condition(layer, inputs):
        pairs = zip(inputs, labels, strict=True)
        return torch.stack([layer.linear.weight @ v + layer.linear.bias + layer.rows[y] for v, y in pairs])

    def linear(layer, inputs):
        return torch.stack([layer.weight @ row + layer.bias for row in inputs])

    hidden = relu(linear(network.encoder, relu(condition(network.encoder_in, x))))
    mean, log_variance = network.encode(x, labels)
    torch.testing.assert_close(mean, linear(network.mean, hidden))
    torch.testing.assert_close(log_variance, linear(network.log_variance, hidden))
    decoded = relu(linear(network.decoder_out, relu(linear(network.decoder, relu(condition(network.decoder_in, z))))))
    torch.testing.assert_close(network.decode(z, labels), decoded)


def test_generated_features_are_never_negative():
    generated = vae(3).decode(10 * numbers(200, 3), torch.arange(200) % 3)
    assert generated.min() == 0
    assert generated.max() > 0


@pytest.mark.parametrize("classes", [1, 4])
def test_growing_does_not_change_generated_features_of_old_classes(classes):
    network, z, labels = vae(3), numbers(9, 3), torch.arange(9) % 3
    before = network.decode(z, labels)
    network.grow(classes, Stream.root(0).torch_generator("more"))
    assert torch.equal(network.decode(z, labels), before)
    assert not torch.equal(network.decode(z, torch.full((9,), 3)), before)


def test_generated_features_depend_on_the_class():
    network, z = vae(3), numbers(1, 3)
    zero, one = (network.decode(z, torch.tensor([label])) for label in (0, 1))
    assert not torch.equal(zero, one)


def test_decoder_noise_gives_generated_features_the_mean_and_covariance_of_real_ones():
    """Generated features plus decoder noise have the mean and covariance of the real features."""
    draws = Stream.root(0).torch_generator()
    real = [5 + torch.randn(4000, 3, generator=draws) @ torch.tensor([[1.0, 0, 0], [0.5, 1, 0], [0, 0.3, 0.2]]).T]
    real.append(real[0] + 3)
    generated = torch.full((4000, 3), 4.0)  # a decoder that generates a constant feature
    decoder_noise = DecoderNoise(3)
    decoder_noise.learn(
        torch.stack([(rows - generated).mean(0) for rows in real]), torch.stack([rows.T.cov() for rows in real]).mean(0)
    )
    for label, rows in enumerate(real):
        labels = torch.full((4000,), label)
        samples = decoder_noise.added(generated, labels, torch.randn(4000, 3, generator=draws))
        torch.testing.assert_close(samples.mean(0), rows.mean(0), atol=0.08, rtol=0)
        torch.testing.assert_close(samples.T.cov(), rows.T.cov(), atol=0.12, rtol=0)
    decoder_noise.remove_class(0)
    assert len(decoder_noise.means) == 1
    samples = decoder_noise.added(generated[:1], torch.tensor([0]), torch.zeros(1, 3))
    torch.testing.assert_close(samples[0], real[1].mean(0), atol=1e-3, rtol=0)


def test_residual_covariance_is_the_mean_over_classes_and_features_stay_nonnegative():
    decoder_noise = DecoderNoise(2)
    decoder_noise.learn(torch.zeros(3, 2), torch.diag(torch.tensor([1.0, 4.0])))
    decoder_noise.learn(torch.zeros(1, 2), torch.diag(torch.tensor([5.0, 0.0])))
    expected = torch.diag(torch.tensor([2.0, 3.0]))
    torch.testing.assert_close(decoder_noise.factor @ decoder_noise.factor.T, expected, atol=1e-4, rtol=0)
    noise = torch.randn(50, 2, generator=Stream.root(0).torch_generator())
    assert decoder_noise.added(torch.zeros(50, 2), torch.zeros(50).long(), noise).min() == 0


def test_decoder_noise_of_any_number_of_classes_can_be_loaded():
    vae = ConditionalVAE(2, 3, 4, decoder_noise=True)
    vae.decoder_noise.learn(torch.ones(3, 2), torch.eye(2))
    other = ConditionalVAE(2, 3, 4, decoder_noise=True)
    other.load_state_dict(vae.state_dict())
    assert torch.equal(other.decoder_noise.means, vae.decoder_noise.means)
    assert ConditionalVAE(2, 3, 4).decoder_noise is None
