"""Settings that follow from the images, where the user sets none."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

from etag.core.errors import EtagError
from etag.data.folders import image_sizes
from etag.learner.pretrained import default_is_installed, locate

SCRATCH, PRETRAINED = "learn", "learn-pretrained"  # recipes
FEW_IMAGES = 300  # so few are shown to a pre-trained backbone at its own size on a CPU, more at half of it
MANY_IMAGES = 5000  # with so many a pre-trained network can be adapted to them
INSPECTED = 200  # files whose size is read
SIDES = (32, 64, 128)  # pixels that images are scaled to on a CPU; on a GPU 224 is a choice too


Quality = Literal["fast", "balanced", "best"]


def for_new_model(
    given: Mapping[str, Any], from_scratch: bool, images: int, side: Callable[[], int]
) -> tuple[str, dict[str, Any]]:
    """The recipe of a new model, and defaults that follow from the number of images in its first lesson. Pre-trained
    weights are used, given ones or those that are installed, unless something given excludes them. `side` returns a
    side in pixels that suits the images."""
    weights, gpu = given.get("model.weights"), torch.cuda.is_available()
    if weights is not None:
        if from_scratch:
            raise EtagError("--from-scratch is without pre-trained weights: leave it out, or leave out the weights.")
        expected = locate(weights).images
        return PRETRAINED, {"data.size": side() if expected is None else expected.size}
    own_network = any(given.get(key) is not None for key in ("model.width", "model.backbone"))
    if from_scratch or own_network or not default_is_installed():
        return SCRATCH, {"data.size": side(), "model.width": None if gpu else 16}
    return PRETRAINED, {"data.size": default_side(images)}


def default_side(images: int) -> int:
    """The side in pixels of images for the default pre-trained backbone."""
    return 224 if images <= FEW_IMAGES or torch.cuda.is_available() else 128


def side_for(files: Sequence[str]) -> int:
    """A side in pixels that suits image files: at most their median side."""
    median = statistics.median(map(min, image_sizes(files[:: max(1, len(files) // INSPECTED)])))
    sides = [*SIDES, 224] if torch.cuda.is_available() else SIDES
    return max([side for side in sides if side <= median], default=SIDES[0])


def for_quality(quality: Quality, recipe: str, images: int) -> dict[str, Any]:
    """What a choice between speed and accuracy changes in a lesson of a new model. With pre-trained weights it is the
    size of the images, and for `best` with many images the last stages of the network are adapted to them; a network
    that is trained from scratch is trained for half or twice as long."""
    if quality == "balanced":
        return {}
    if recipe == SCRATCH:
        return {"train.length_factor": 0.5 if quality == "fast" else 2.0}
    if quality == "fast":
        return {"data.size": 96}
    adaptation = {"model.train": "last-2", "method.features.source": "base", "train.epochs": 6, "train.lr": 1e-3}
    return {"data.size": 224} | (adaptation if images >= MANY_IMAGES else {})


def for_lesson(images: int, batch_size: int) -> dict[str, Any]:
    """How long to train, by the number of images."""
    epoch = max(1, images // batch_size)
    return {"train.steps": max(600, 6 * epoch), "train.base.steps": max(1000, 10 * epoch)}
