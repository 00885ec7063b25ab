import pytest
import torch
from torch.nn import functional

from etag.core.outputs import Need
from etag.core.random import Stream
from etag.models.backbone import ModelOptions
from etag.models.heads import HeadOptions
from etag.models.solver import build_solver

STREAM = Stream.root(0)


def vgg(size, **options):
    return build_solver(ModelOptions(backbone="vgg11", **options), HeadOptions(), 3, size, STREAM).backbone


def test_the_default_network_has_the_published_number_of_parameters():
    biases = 64 + 128 + 2 * 256 + 4 * 512  # of the convolutions, which have none here
    assert sum(parameter.numel() for parameter in vgg(32).parameters()) == 9_225_984 - biases


@pytest.mark.parametrize(("size", "sides"), [(32, [16, 8, 4, 2, 1]), (70, [35, 17, 8, 4, 2])])
def test_every_stage_halves_the_side(size, sides):
    network = build_solver(ModelOptions(backbone="vgg11", width=2), HeadOptions(), 3, size, STREAM).eval()
    outputs = network(torch.zeros(1, 3, size, size), Need.STAGES)
    shapes = [(1, channels, side, side) for channels, side in zip([2, 4, 8, 16, 16], sides, strict=True)]
    assert [tuple(maps.shape) for maps in outputs.stages] == shapes


@pytest.mark.parametrize(("stage", "convolutions"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (6, 2)])
def test_a_stage_has_convolutions_and_pooling(stage, convolutions, disturb):
    network = vgg(32, width=2)
    layers = disturb(network.stages[stage - 1] if stage < 6 else network.branch(5)[0]).eval()
    x = y = torch.randn(2, layers[0][0].in_channels, 4, 4, generator=STREAM.torch_generator("x"))
    state = list(layers.state_dict().values())
    for first in range(0, 6 * convolutions, 6):
        weight, scale, shift, mean, variance, _ = state[first : first + 6]
        y = functional.conv2d(y, weight, padding=1)
        y = functional.batch_norm(y, mean, variance, scale, shift).clamp_min(0)
    assert len(state) == 6 * convolutions
    if stage < 6:  # the stage after the last does not pool
        y = y.unfold(2, 2, 2).unfold(3, 2, 2).amax((4, 5))
    torch.testing.assert_close(layers(x), y)
