"""EfficientNet-Lite, against its original package and its real weights."""

import hashlib

import pytest
import torch
from torch import nn

from etag.learner.pretrained import KNOWN
from etag.models.backbone import ModelOptions, new_backbone
from etag.models.backbones.efficientnet import TensorflowConvNorm
from etag.models.weights import load_weights, read_tensors

original = pytest.importorskip("efficientnet_lite_pytorch", reason="efficientnet_lite_pytorch is not installed")


def pair(number, side, weights=None):
    """The original network and ours, with the same weights."""
    theirs = original.EfficientNet.from_name(f"efficientnet-lite{number}", image_size=side).eval()
    if weights is None:
        for name, value in theirs.state_dict().items():
            if value.is_floating_point():  # large enough that ReLU6 saturates here and there
                seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")
                noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(seed))
                value.copy_(1 + 0.3 * noise.abs() if name.endswith("running_var") else value + 0.05 * noise)
        weights = theirs.state_dict()
    theirs.load_state_dict(weights)
    ours = new_backbone(ModelOptions(backbone=f"efficientnet_lite{number}"), 3, side).eval()
    translated = {ours.translate_name(name): value for name, value in weights.items()}
    ours.load_state_dict({name: value for name, value in translated.items() if not name.startswith("_fc")})
    return theirs, ours


@torch.no_grad()
def differences(theirs, ours, side):
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    expected = theirs.extract_features(images)
    return (expected.mean((2, 3)) - ours(images)).abs().max().item(), expected.abs().max().item()


@pytest.mark.parametrize(("number", "side"), [(0, 64), (0, 96), (1, 64), (2, 72)])
def test_features_equal_those_of_the_original_package(number, side):
    error, size = differences(*pair(number, side), side)
    assert size > 1e-3
    assert error < 1e-4 * max(1.0, size)


@pytest.mark.parametrize("known", KNOWN.values(), ids=list(KNOWN))
def test_features_with_the_real_weights_equal_those_of_the_original_package(known):
    if known.path is None:
        pytest.skip(f"{known.package} is not installed")
    number, side = int(known.backbone[-1]), known.images.size
    error, size = differences(*pair(number, side, torch.load(known.path, weights_only=True)), side)
    assert size > 1
    assert error < 1e-4


@pytest.mark.parametrize("known", [known for known in KNOWN.values() if known.path], ids=lambda known: known.backbone)
def test_the_known_weights_are_the_installed_ones(known):
    assert hashlib.sha256(known.path.read_bytes()).hexdigest() == known.sha256
    assert known.path.stat().st_size / 1e6 == pytest.approx(known.megabytes, abs=1)
    numbers = sum(value.numel() for name, value in read_tensors(known.path).items() if "running" not in name)
    assert numbers / 1e6 == pytest.approx(known.parameters, abs=0.1)
    backbone = new_backbone(ModelOptions(backbone=known.backbone), 3, known.images.size)
    report = load_weights(backbone, known.path)
    assert sorted(report.unused) == ["_fc.bias", "_fc.weight"]
    assert {*report.loaded} == {*backbone.state_dict()}


@pytest.mark.parametrize(("kernel", "side"), [(3, 8), (3, 9), (5, 8), (5, 9), (5, 15)])
@torch.no_grad()
def test_padding_is_that_of_tensorflow(kernel, side):
    """SAME: the output has ceil(side / 2) pixels; of an odd number of zeros the last row and column get one more."""
    layer = TensorflowConvNorm(1, 1, kernel, stride=2).eval()
    images = torch.randn(1, 1, side, side, generator=torch.Generator().manual_seed(0))
    out = -(-side // 2)
    total = max(0, (out - 1) * 2 + kernel - side)
    padded = nn.functional.pad(images, (total // 2, total - total // 2) * 2)
    expected = nn.functional.conv2d(padded, layer[0].weight, stride=2) / (1 + 1e-3) ** 0.5
    assert layer(images).shape == (1, 1, out, out)
    torch.testing.assert_close(layer(images), expected)


def test_a_name_of_something_else_stays_as_it_is():
    backbone = new_backbone(ModelOptions(backbone="efficientnet_lite0", width=8), 3, 32)
    for name in ("_fc.weight", "_blocks.99._bn0.bias", "_blocks.x._bn0.bias", "_blocks.0._se.bias", "a.b", "_blocks"):
        assert backbone.translate_name(name) == name
