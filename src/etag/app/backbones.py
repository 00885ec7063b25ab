"""The backbones, which pre-trained weights there are for them, and whether they work here."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from etag.core.errors import unknown_name
from etag.core.images import ImageFormat
from etag.core.random import Stream
from etag.data.decode import UnreadableImage, decode
from etag.data.images import unreadable_error
from etag.data.preprocess import Preprocess
from etag.learner.pretrained import BY_BACKBONE, PackagedWeights, complete, locate
from etag.models.backbone import BACKBONES, Backbone, ModelOptions, new_backbone
from etag.models.initial import build
from etag.models.weights import WeightsReport, load_weights


def list_backbones() -> list[dict[str, Any]]:
    """One row per backbone and its known weights; a backbone without any is trained from scratch."""
    return [{"name": name} | _weights(BY_BACKBONE.get(name)) for name in BACKBONES]


def _weights(known: PackagedWeights | None) -> dict[str, Any]:
    if known is None:
        return {"package": None, "installed": False}
    return {
        "package": known.package,
        "installed": known.path is not None,
        "size": known.images.size,
        "parameters": round(known.parameters * 1e6),
        "megabytes": known.megabytes,
        "top1": known.top1,
        "license": known.license,
    }


@dataclass(frozen=True)
class LoadedBackbone:
    """A backbone with pre-trained weights in evaluation mode, and how it gets its images."""

    options: ModelOptions
    backbone: Backbone
    preprocess: Preprocess
    report: WeightsReport


def load_backbone(name: str, size: int | None = None) -> LoadedBackbone:
    """Load pre-trained weights, by the name of their backbone or by their source. `size` is the side of the images, by
    default the one of pre-training."""
    options = complete(ModelOptions(weights=name))
    images = options.images or ImageFormat(size=224, mean=(0.5,) * 3, std=(0.25,) * 3)
    side = size or images.size
    backbone = build(lambda: new_backbone(options, 3, side), Stream.root(0).torch_generator("backbone"))
    report = load_weights(backbone, locate(str(options.weights)).file)
    preprocess = Preprocess(
        images.mean, images.std, side, flip=False, interpolation=images.interpolation, crop=images.crop
    )
    return LoadedBackbone(options, backbone.eval(), preprocess, report)


@dataclass(frozen=True)
class BackboneCheck:
    """What a backbone with its weights computes from an image."""

    backbone: str
    sha256: str
    loaded: WeightsReport
    size: int
    features: torch.Tensor
    seconds: float


def check_backbone(name: str, image: Path | None = None) -> BackboneCheck:
    """Load pre-trained weights, by the name of their backbone or by their source, and run them on an image."""
    if name in BACKBONES and name not in BY_BACKBONE:
        raise unknown_name("backbone with weights", name, BY_BACKBONE)
    loaded = load_backbone(name)
    backbone, preprocess, size = loaded.backbone, loaded.preprocess, loaded.preprocess.size
    pixels = torch.randint(0, 256, (3, size, size), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    if image is not None:
        try:
            pixels = torch.from_numpy(decode(image, preprocess.resize))
        except UnreadableImage as reason:
            raise unreadable_error([f"{image} ({reason})"]) from reason
    inputs = preprocess.centered(pixels[None])
    with torch.inference_mode():
        backbone(inputs)  # the first pass prepares
        start = time.perf_counter()
        (features,) = backbone(inputs)
    seconds = time.perf_counter() - start
    return BackboneCheck(loaded.options.backbone, str(loaded.options.sha256), loaded.report, size, features, seconds)
