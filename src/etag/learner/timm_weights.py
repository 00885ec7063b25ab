"""Weights of timm: timm downloads them, and a file of tensors is written into the user's cache, so that they are read
and checked as all other weights are."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from etag.core.errors import EtagError
from etag.core.files import locked, user_cache, write_atomically
from etag.core.images import ImageFormat, Interpolation
from etag.learner.tensors import to_bytes
from etag.models.backbones.timm_network import checked_name, import_timm, new_network, reason

PREFIX = "timm:"
# where we have no such filter, the most similar one
FILTERS: dict[str, Interpolation] = {"bilinear": "bilinear", "bicubic": "bicubic", "lanczos": "bicubic"}
FILTERS |= {"nearest": "bilinear", "box": "bilinear", "hamming": "bilinear"}
SAFELY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # with it, torch.load refuses pickled code, whatever its caller asks for


def read_network(source: str) -> tuple[str, dict[str, Any]]:
    """The full name of `timm:NAME`, with the tag that tells the weights of a network apart, and the images that they
    expect, in timm's words. Nothing is downloaded."""
    name = checked_name(source.removeprefix(PREFIX), "model.weights")
    network, timm = new_network(name, "meta"), import_timm()
    config = network.pretrained_cfg
    name = ".".join(filter(None, (config["architecture"], config.get("tag"))))
    return checked_name(name, "model.weights"), timm.data.resolve_model_data_config(network)


def image_format(name: str, values: dict[str, Any]) -> ImageFormat:
    """What timm says of images as our options; an EtagError names what they cannot express."""
    _, side, width = values["input_size"]
    crop, mode = values["crop_pct"], values["crop_mode"]
    problem = None
    if side != width:
        problem = f"are {side}x{width} pixels and not square"
    elif mode not in ("center", "squash") or (mode == "squash" and crop != 1) or crop > 1:
        problem = f"are cropped in a way that etag does not have (crop_mode={mode}, crop_pct={crop})"
    try:
        if problem is None:
            return ImageFormat(
                size=side,
                mean=values["mean"],
                std=values["std"],
                interpolation=FILTERS[values["interpolation"]],
                crop=None if mode == "squash" else side / math.floor(side / crop),
            )
    except (ValidationError, KeyError):
        problem = f"are described by values that etag does not know: {values}"
    raise EtagError(
        f"the images of {name} {problem}: set model.images, such as model.images={{size: {side}, mean: "
        "[0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}."
    )


def weights_file(name: str) -> Path:
    """The file of tensors of a network with its pre-trained weights; they are downloaded once per version of timm."""
    timm = import_timm()
    file = user_cache() / "timm" / f"{name}-{timm.__version__}.safetensors"
    with locked(file.parent / ".lock", busy=None):  # other processes wait, and then find the file
        if not file.exists():
            write_atomically(file, to_bytes(_download(timm, name)))
    return file


def _download(timm: Any, name: str) -> dict[str, Tensor]:
    """The tensors of a network with its pre-trained weights, without its last layer."""
    try:
        with _safely(), torch.random.fork_rng(devices=[]):
            network = timm.create_model(checked_name(name, "model.weights"), pretrained=True, num_classes=0)
    except Exception as error:  # whatever a network can do
        raise EtagError(
            f"the weights of {name} cannot be loaded through timm ({reason(error)}): check the name and the network "
            "connection, or choose other weights."
        ) from error
    return {key: value.detach().clone() for key, value in network.state_dict().items()}


@contextmanager
def _safely() -> Iterator[None]:
    before = os.environ.get(SAFELY)
    os.environ[SAFELY] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(SAFELY, None)
        else:
            os.environ[SAFELY] = before
