"""timm for tests: the real package where it can be imported, and everywhere a stand-in with two small networks."""

import sys
import types

import pytest
import torch
from torch import nn

RESNET, VIT, SIDE = (
    "test_resnet.r160_in1k",
    "test_vit.r160_in1k",
    160,
)  # the real timm has small networks of these names


class StandInResNet(nn.Module):
    """A convolution, BatchNorm and a mean over places."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.Dropout(0.5)
        self.feature_info = [{"reduction": 2}]

    def forward(self, images):
        return self.drop(self.norm(self.conv(images)).mean((2, 3)))


class StandInViT(nn.Module):
    """Patches with positions, and a scale that is computed and never saved."""

    def __init__(self, dynamic_img_size=False):
        super().__init__()
        self.patches, self.dynamic = nn.Conv2d(3, 8, 16, 16), dynamic_img_size
        self.positions = nn.Parameter(torch.randn(1, 8, 10, 10))
        self.register_buffer("scale", torch.full((8,), 2.0), persistent=False)
        self.drop_rate, self.feature_info = 0.5, [{"reduction": 16}]

    def forward(self, images):
        assert images.shape[-1] % 16 == 0
        assert self.dynamic or images.shape[-1] == SIDE
        patches, positions = self.patches(images), self.positions
        if patches.shape[2:] != positions.shape[2:]:
            positions = nn.functional.interpolate(positions, patches.shape[2:], mode="bilinear")
        mean = (patches + positions).mean((2, 3)) * self.scale
        return nn.functional.dropout(mean, self.drop_rate, self.training)


def stand_in():
    """The part of timm that etag uses."""

    def create_model(name, pretrained=False, num_classes=1000, **options):
        architecture, _, tag = name.partition(".")
        if architecture not in ("test_resnet", "test_vit") or tag not in ("", "r160_in1k"):
            raise RuntimeError(f"Unknown model ({name})")
        network = StandInViT(**options) if architecture == "test_vit" else StandInResNet(**options)
        network.pretrained_cfg = {"architecture": architecture, "tag": "r160_in1k", "input_size": (3, SIDE, SIDE)}
        network.pretrained_cfg["fixed_input_size"] = architecture == "test_vit"
        return network

    timm, timm.data = types.ModuleType("timm"), types.ModuleType("timm.data")
    timm.__version__, timm.create_model = "0.0", create_model
    timm.data.resolve_model_data_config = lambda network: {
        "input_size": network.pretrained_cfg["input_size"],
        "interpolation": "bicubic",
        "mean": (0.5, 0.5, 0.5),
        "std": (0.25, 0.25, 0.25),
        "crop_pct": 0.95,
        "crop_mode": "center",
    }
    return timm


def install(kind, monkeypatch, tmp_path):
    """Make `import timm` give the stand-in or the real package, whose weights are then random and not downloaded.
    Returns timm, with the state dicts that it gave as pre-trained weights by name in `timm.given`."""
    if kind == "real":
        try:
            import timm
        except Exception as error:  # a torchvision for another torch raises a RuntimeError
            pytest.skip(f"timm cannot be imported here: {type(error).__name__}: {error}")
    else:
        timm = stand_in()
        monkeypatch.setitem(sys.modules, "timm", timm)
        monkeypatch.setitem(sys.modules, "timm.data", timm.data)
    create = timm.create_model
    given = {}

    def create_model(name, pretrained=False, **options):
        network = create(name, **options)
        if pretrained:
            given[name] = {key: value.clone() for key, value in network.state_dict().items()}
        return network

    monkeypatch.setattr(timm, "create_model", create_model)
    monkeypatch.setattr(timm, "given", given, raising=False)
    monkeypatch.setattr("etag.learner.timm_weights.user_cache", lambda: tmp_path / "cache")
    return timm
