import pytest
import torch

from etag.core.outputs import Need
from etag.core.random import Stream
from etag.models.backbone import ModelOptions
from etag.models.backbones.resnet import BasicBlock
from etag.models.initial import build
from etag.models.solver import build_solver


@pytest.mark.parametrize(
    ("size", "stem", "sides"),
    [
        (224, "auto", [56, 28, 14, 7]),
        (224, "imagenet", [56, 28, 14, 7]),
        (32, "auto", [32, 16, 8, 4]),
        (64, "auto", [64, 32, 16, 8]),
        (65, "cifar", [65, 33, 17, 9]),
    ],
)
def test_stages_halve_the_side_and_double_the_width(size, stem, sides):
    made = build_solver(ModelOptions(width=2, stem=stem), 3, size, Stream.root(0)).eval()
    said = made(torch.zeros(1, 3, size, size), Need.STAGES | Need.FEATURE)
    assert [tuple(maps.shape) for maps in said.stages] == [
        (1, 2 * 2**stage, side, side) for stage, side in enumerate(sides)
    ]
    assert said.feature.shape == (1, 16)
    torch.testing.assert_close(said.feature, said.stages[-1].mean((2, 3)))


@pytest.mark.parametrize(("channels", "out", "stride"), [(4, 4, 1), (4, 8, 2), (4, 8, 1)])
def test_a_block_adds_two_convolutions_to_its_input(channels, out, stride, disturb):
    block = disturb(build(lambda: BasicBlock(channels, out, stride), Stream.root(0).generator())).eval()
    x = torch.randn(2, channels, 6, 6, generator=Stream.root(0).generator("x"))
    within = block.norm2(block.conv2(block.norm1(block.conv1(x)).clamp_min(0)))
    beside = x if channels == out and stride == 1 else block.shortcut[1](block.shortcut[0](x))
    torch.testing.assert_close(block(x), (within + beside).clamp_min(0))
    assert (block(x) == 0).any()


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_no_map_is_negative(stem, disturb):
    made = disturb(build_solver(ModelOptions(width=2, stem=stem), 3, 32, Stream.root(0))).eval()
    said = made(torch.randn(2, 3, 32, 32, generator=Stream.root(0).generator("x")), Need.STAGES)
    assert all(maps.min() == 0 for maps in said.stages)
