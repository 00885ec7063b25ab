import pytest
import torch
from torch import nn

from etag.core.random import Stream
from etag.models.cvae import ConditionalLinear, ConditionalVAE
from etag.models.initial import build


def numbers(*shape, key="x"):
    return torch.randn(*shape, generator=Stream.root(0).generator(key, *shape))


def vae(*blocks, features=6, latent=3, hidden=8):
    made = build(lambda: ConditionalVAE(features, latent, hidden), Stream.root(0).generator("vae"))
    for number, classes in enumerate(blocks):
        made.grow(classes, Stream.root(0).generator("grow", number))
    return made


def test_the_papers_generator_has_1_461_136_parameters():
    made = vae(100, features=512, latent=200, hidden=512)
    assert sum(parameter.numel() for parameter in made.parameters()) == 1_461_136
    in_blocks = vae(50, 10, 40, features=512, latent=200, hidden=512)
    assert sum(parameter.numel() for parameter in in_blocks.parameters()) == 1_461_136


def test_a_conditional_layer_is_a_linear_layer_on_x_and_a_one_hot_label():
    layer = build(lambda: ConditionalLinear(4, 5), Stream.root(0).generator("layer"))
    layer.grow(2, Stream.root(0).generator(0))
    layer.grow(1, Stream.root(0).generator(1))
    joint = nn.Linear(4 + 3, 5)
    with torch.no_grad():
        joint.weight.copy_(torch.cat([layer.linear.weight, layer.rows.T], dim=1))
        joint.bias.copy_(layer.linear.bias)
    x, labels = numbers(6, 4), torch.tensor([0, 1, 2, 2, 0, 1])
    one_hot = torch.zeros(6, 3)
    for row, label in enumerate(labels):
        one_hot[row, label] = 1
    torch.testing.assert_close(layer(x, labels), joint(torch.cat([x, one_hot], dim=1)))


def test_encode_and_decode_are_two_hidden_layers_with_relu(naive):
    made, relu = vae(2, 1).double(), lambda values: values.clamp_min(0)
    x, z, labels = numbers(5, 6).double(), numbers(5, 3).double(), torch.tensor([0, 2, 1, 2, 0])

    def condition(layer, inputs):
        pairs = zip(inputs, labels, strict=True)
        return torch.stack([layer.linear.weight @ v + layer.linear.bias + layer.rows[y] for v, y in pairs])

    def linear(layer, inputs):
        return torch.stack([layer.weight @ row + layer.bias for row in inputs])

    hidden = relu(linear(made.encoder, relu(condition(made.encoder_in, x))))
    mean, log_variance = made.encode(x, labels)
    torch.testing.assert_close(mean, linear(made.mean, hidden))
    torch.testing.assert_close(log_variance, linear(made.log_variance, hidden))
    decoded = relu(linear(made.decoder_out, relu(linear(made.decoder, relu(condition(made.decoder_in, z))))))
    torch.testing.assert_close(made.decode(z, labels), decoded)


def test_made_features_are_never_negative():
    made = vae(3).decode(10 * numbers(200, 3), torch.arange(200) % 3)
    assert made.min() == 0
    assert made.max() > 0


@pytest.mark.parametrize("classes", [1, 4])
def test_growth_leaves_what_is_made_of_old_classes_unchanged(classes):
    made, z, labels = vae(3), numbers(9, 3), torch.arange(9) % 3
    before = made.decode(z, labels)
    made.grow(classes, Stream.root(0).generator("more"))
    assert torch.equal(made.decode(z, labels), before)
    assert not torch.equal(made.decode(z, torch.full((9,), 3)), before)


def test_the_class_matters():
    made, z = vae(3), numbers(1, 3)
    zero, one = (made.decode(z, torch.tensor([label])) for label in (0, 1))
    assert not torch.equal(zero, one)
