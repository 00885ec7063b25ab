import numpy as np
import torch

from etag.core.outputs import Need
from etag.core.random import Stream
from etag.models.backbone import ModelOptions
from etag.models.heads import HeadOptions
from etag.models.solver import build_solver

STREAM = Stream.root(0)


def mlp(size=28, channels=1, **options):
    return build_solver(ModelOptions(backbone="mlp", **options), HeadOptions(), channels, size, STREAM)


def test_the_default_network_has_two_layers_of_400():
    layers = 784 * 400 + 400 + 400 * 400 + 400
    assert sum(parameter.numel() for parameter in mlp().backbone.parameters()) == layers


def test_an_mlp_is_two_linear_layers_with_relu(naive, disturb):
    network = disturb(mlp(size=4, channels=2, width=6))
    images = torch.randn(5, 2, 4, 4, generator=STREAM.torch_generator("x"))
    outputs = network(images.contiguous(memory_format=torch.channels_last), Need.STAGES | Need.FEATURE)
    x, expected = images.double().numpy().reshape(5, 32), []
    for layer in (network.backbone.stages[0][1], network.backbone.stages[1][0]):
        x = np.maximum(naive.linear(layer, x), 0)
        expected.append(x)
    for stage, rows in zip(outputs.stages, expected, strict=True):
        np.testing.assert_allclose(stage.detach(), rows, atol=1e-5)
    assert torch.equal(outputs.feature, outputs.stages[-1])
