"""Settings that follow from the images, where the user sets none."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from etag.data.folders import image_sizes
from etag.learner.pretrained import default_is_installed

SCRATCH, PRETRAINED = "learn", "learn-pretrained"  # recipes
FEW_IMAGES = 300  # so few are shown to a pre-trained backbone at its own size on a CPU, more at half of it
INSPECTED = 200  # files whose size is read
SIDES = (32, 64, 128)  # pixels that images are scaled to on a CPU; on a GPU, or with given weights, 224 is a choice too


def recipe_for(given: Mapping[str, Any], from_scratch: bool) -> str:
    """The recipe of a new model: with pre-trained weights if they are installed and nothing given excludes them."""
    excluded = from_scratch or any(
        given.get(key) is not None for key in ("model.width", "model.backbone", "model.weights")
    )
    return SCRATCH if excluded or not default_is_installed() else PRETRAINED


def for_pretrained(images: int) -> dict[str, Any]:
    """What a model with a pre-trained backbone starts with."""
    return {"data.size": 224 if images <= FEW_IMAGES or torch.cuda.is_available() else 128}


def for_images(files: Sequence[str], weights: str | None = None) -> dict[str, Any]:
    """What a model starts with: the side of its images, at most their median side, and the width of the network."""
    large = torch.cuda.is_available() or weights is not None
    median = statistics.median(map(min, image_sizes(files[:: max(1, len(files) // INSPECTED)])))
    side = max([side for side in (*SIDES, *((224,) if large else ())) if side <= median], default=SIDES[0])
    return {"data.size": side, "model.width": None if large else 16}


def for_lesson(images: int, batch_size: int) -> dict[str, Any]:
    """How long to train, by the number of images."""
    epoch = max(1, images // batch_size)
    return {"train.steps": max(600, 6 * epoch), "train.base.steps": max(1000, 10 * epoch)}
