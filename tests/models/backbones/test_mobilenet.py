import pytest
import torch
from torch.nn import functional

from etag.core.outputs import Need
from etag.core.random import Stream
from etag.models.backbone import ModelOptions
from etag.models.backbones.mobilenet import InvertedResidual
from etag.models.heads import HeadOptions
from etag.models.initial import build
from etag.models.solver import build_solver

STREAM = Stream.root(0)


def mobilenet(size=32, **options):
    return build_solver(ModelOptions(backbone="mobilenetv2", **options), HeadOptions(), 3, size, STREAM)


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_the_default_network_has_the_published_number_of_parameters(stem):
    assert sum(parameter.numel() for parameter in mobilenet(stem=stem).backbone.parameters()) == 2_223_872


@pytest.mark.parametrize(
    ("size", "stem", "sides"),
    [(96, "auto", [48, 24, 12, 6, 3]), (64, "imagenet", [32, 16, 8, 4, 2]), (32, "auto", [32, 32, 16, 8, 4])],
)
def test_there_is_one_stage_per_resolution(size, stem, sides):
    outputs = mobilenet(size, width=16, stem=stem).eval()(torch.zeros(1, 3, size, size), Need.STAGES)
    channels = [8, 12, 16, 48, 640]  # half of 16, 24, 32, 96, 1280
    shapes = [(1, width, side, side) for width, side in zip(channels, sides, strict=True)]
    assert [tuple(maps.shape) for maps in outputs.stages] == shapes


def test_the_narrowest_network_has_at_least_one_channel_everywhere():
    network = mobilenet(width=1).eval()
    outputs = network(torch.zeros(1, 3, 32, 32), Need.STAGES)
    assert [maps.shape[1] for maps in outputs.stages] == [1, 1, 1, 3, 40]


@pytest.mark.parametrize("expansion", [1, 6])
@pytest.mark.parametrize(("out", "stride", "added"), [(3, 1, True), (3, 2, False), (4, 1, False)])
def test_a_block_expands_filters_and_projects(expansion, out, stride, added, disturb):
    block = disturb(build(lambda: InvertedResidual(3, out, stride, expansion), STREAM.torch_generator())).eval()
    x = y = 3 * torch.randn(2, 3, 6, 6, generator=STREAM.torch_generator("x"))
    state = list(block.state_dict().values())
    layers = [state[first : first + 6] for first in range(0, len(state), 6)]
    assert len(layers) == (3 if expansion > 1 else 2)
    for number, (weight, scale, shift, mean, variance, _) in enumerate(layers, start=1):
        filters = number == len(layers) - 1
        groups, step = (3 * expansion, stride) if filters else (1, 1)
        y = functional.conv2d(y, weight, stride=step, padding=int(filters), groups=groups)
        y = functional.batch_norm(y, mean, variance, scale, shift)
        if number < len(layers):
            y = y.clamp(0, 6)
    torch.testing.assert_close(block(x), x + y if added else y)
    assert block(x).min() < 0  # no activation at the end


def test_activations_are_clipped_at_six(disturb):
    network = disturb(mobilenet(width=4), scale=1.0).eval()
    outputs = network(100 * torch.randn(4, 3, 32, 32, generator=STREAM.torch_generator("x")), Need.STAGES)
    assert outputs.stages[-1].max() == 6
