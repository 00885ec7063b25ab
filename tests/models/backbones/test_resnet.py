import pytest
import torch
from torch.nn import functional

from etag.core.outputs import Need
from etag.core.random import Stream
from etag.models.backbone import ModelOptions
from etag.models.backbones.resnet import BasicBlock
from etag.models.heads import HeadOptions
from etag.models.initial import build
from etag.models.solver import build_solver


@pytest.mark.parametrize(
    ("name", "size", "stem", "sides"),
    [
        ("resnet18", 224, "auto", [56, 28, 14, 7]),
        ("resnet18", 224, "imagenet", [56, 28, 14, 7]),
        ("resnet18", 32, "auto", [32, 16, 8, 4]),
        ("resnet18", 64, "auto", [64, 32, 16, 8]),
        ("resnet18", 65, "cifar", [65, 33, 17, 9]),
        ("resnet32", 32, "auto", [32, 16, 8]),
        ("resnet32", 96, "auto", [24, 12, 6]),
    ],
)
def test_stages_halve_the_side_and_double_the_width(name, size, stem, sides):
    network = build_solver(
        ModelOptions(backbone=name, width=2, stem=stem), HeadOptions(), 3, size, Stream.root(0)
    ).eval()
    outputs = network(torch.zeros(1, 3, size, size), Need.STAGES | Need.FEATURE)
    assert [tuple(maps.shape) for maps in outputs.stages] == [
        (1, 2 * 2**stage, side, side) for stage, side in enumerate(sides)
    ]
    assert outputs.feature.shape == (1, 2 ** len(sides))
    torch.testing.assert_close(outputs.feature, outputs.stages[-1].mean((2, 3)))


@pytest.mark.parametrize(
    ("name", "stem", "classes", "count"),
    [
        ("resnet18", "imagenet", 1000, 11_689_512),  # torchvision's
        ("resnet18", "cifar", 100, 11_220_132),  # the paper's
        ("resnet32", "cifar", 10, 466_906),  # 464,154 and its two projections: 16 x 32 + 32 x 64 and BatchNorm
    ],
)
def test_the_default_networks_have_the_published_number_of_parameters(name, stem, classes, count):
    network = build_solver(ModelOptions(backbone=name, stem=stem), HeadOptions(), 3, 32, Stream.root(0))
    network.head.grow(classes, Stream.root(0).torch_generator())
    assert sum(parameter.numel() for parameter in network.parameters()) == count


@pytest.mark.parametrize(("name", "blocks"), [("resnet18", [2, 2, 2, 2]), ("resnet32", [5, 5, 5])])
def test_stages_have_equally_many_blocks_and_later_ones_start_with_a_stride(name, blocks):
    network = build_solver(ModelOptions(backbone=name, width=2), HeadOptions(), 3, 32, Stream.root(0)).backbone
    stages = [[layer for layer in stage if isinstance(layer, BasicBlock)] for stage in network.stages]
    assert [len(stage) for stage in stages] == blocks
    for number, stage in enumerate(stages):
        strides = [block.first[0].stride[0] for block in stage]
        assert strides == [2 if number else 1] + [1] * (len(stage) - 1)


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
@pytest.mark.parametrize("name", ["resnet18", "resnet32"])
def test_every_block_is_followed_by_a_relu(name, stem, disturb):
    network = disturb(
        build_solver(ModelOptions(backbone=name, width=2, stem=stem), HeadOptions(), 3, 64, Stream.root(0)).backbone
    )
    stem_size, has_negative = {"cifar": 2, "imagenet": 3}[stem], []
    for number, stage in enumerate([*network.stages, disturb(network.branch(len(network.stages)))[0]]):
        layers = list(stage.eval())[0 if number else stem_size :]
        blocks = [layer for layer in layers if isinstance(layer, BasicBlock)]
        x = y = torch.randn(
            2, blocks[0].first[0].in_channels, 8, 8, generator=Stream.root(0).torch_generator("x", number)
        )
        for block in blocks:
            before = block(y)
            has_negative.append(bool((before < 0).any()))
            y = before.clamp_min(0)
        assert torch.equal(torch.nn.Sequential(*layers)(x), y)
    assert sum(has_negative) > len(has_negative) / 2


@pytest.mark.parametrize(("channels", "out", "stride"), [(4, 4, 1), (4, 8, 2), (4, 8, 1)])
def test_a_block_adds_two_convolutions_to_its_shortcut(channels, out, stride, disturb):
    block = disturb(build(lambda: BasicBlock(channels, out, stride), Stream.root(0).torch_generator())).eval()
    x = torch.randn(2, channels, 6, 6, generator=Stream.root(0).torch_generator("x"))
    conv1, norm1, conv2, norm2 = *block.first, *block.second
    residual = norm2(conv2(norm1(conv1(x)).clamp_min(0)))
    shortcut = (
        x
        if channels == out and stride == 1
        else block.shortcut[1](functional.conv2d(x, block.shortcut[0].weight, stride=stride))
    )
    torch.testing.assert_close(block(x), residual + shortcut)
    assert block(x).min() < 0  # its activation is a separate layer


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_maps_are_not_negative(stem, disturb):
    network = disturb(build_solver(ModelOptions(width=2, stem=stem), HeadOptions(), 3, 32, Stream.root(0))).eval()
    outputs = network(torch.randn(2, 3, 32, 32, generator=Stream.root(0).torch_generator("x")), Need.STAGES)
    assert all(maps.min() == 0 for maps in outputs.stages)


@pytest.mark.parametrize("side", [6, 7])
def test_the_gradient_of_a_shortcut_has_the_layout_of_the_maps(side):
    """In bfloat16, adding a gradient of another layout takes fifteen times as long."""
    block = BasicBlock(4, 8, 2).to(memory_format=torch.channels_last)
    x = torch.randn(2, 4, side, side).to(memory_format=torch.channels_last).requires_grad_()
    seen = []
    block.shortcut.register_forward_hook(lambda _, given, output: seen.extend([given[0], output]))
    block(x)
    taken, shortcut = seen
    assert torch.equal(taken, x[:, :, ::2, ::2])
    (gradient,) = torch.autograd.grad(shortcut.sum(), x)
    assert gradient.is_contiguous(memory_format=torch.channels_last)
