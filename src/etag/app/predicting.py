"""Predicting the classes of images with a model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from etag.core.errors import EtagError
from etag.core.memory import images_at_a_time, reuse_freed_memory
from etag.core.precision import at_least_single
from etag.data.images import FileImages, unreadable_reason
from etag.engine.runtime import autocast
from etag.learner.model_directory import ModelDirectory
from etag.learner.versions import ModelInfo, Name
from etag.models.classifier import Classifier

BATCH = 256


@dataclass(frozen=True)
class Prediction:
    """The likeliest classes of an image, the likeliest first; or why the image could not be read."""

    path: str
    classes: tuple[Name, ...] = ()
    probabilities: tuple[float, ...] = ()
    rejected: bool = False  # whether the image seems to be of no known class
    error: str | None = None
    picture: str | None = None  # a file that shows which places of the image decided

    @property
    def name(self) -> Name | None:
        """The class of the image; None if it is rejected or could not be read."""
        return None if self.rejected or not self.classes else self.classes[0]


Device = Literal["auto", "cpu", "cuda", "mps"]


def load_on(model: Path, device: Device = "auto") -> tuple[Classifier, ModelInfo]:
    """A model's classifier on a device; `auto` is a GPU if there is one."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if not present.get(device, True):
        raise EtagError(f"there is no device '{device}' here: choose another, or auto.")
    place = next(name for name, there in present.items() if there) if device == "auto" else device
    return ModelDirectory(model).load_classifier(torch.device(place))


@torch.inference_mode()
def predict_pixels(classifier: Classifier, about: ModelInfo, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """For uint8 images of the model's size: probabilities, one row per image and one column per class, and how familiar
    each image is. Features are computed in bfloat16 where the device has units for it."""
    reuse_freed_memory()
    device = next(classifier.parameters()).device
    pieces = []
    for piece in torch.split(pixels, images_at_a_time(BATCH, about.preprocess.size, device)):
        with autocast(device):
            features = classifier.backbone(about.preprocess.centered(piece.to(device)))
        pieces.append(classifier.predict_from(at_least_single(features)))
    scores, familiarity = (torch.cat(found).cpu() for found in zip(*pieces, strict=True))
    return scores.exp(), familiarity


def is_rejected(about: ModelInfo, familiarity: Tensor) -> Tensor:
    """Whether each image counts as one of no known class, from how familiar it is to the model's classifier."""
    if about.threshold is None:
        raise EtagError(
            "this model has no threshold below which images are rejected: `etag learn` sets it once enough images are "
            "held out, `etag run` does not."
        )
    return familiarity < about.threshold


def rejects_by_default(classifier: Classifier, about: ModelInfo) -> bool:
    """Whether images are rejected unless somebody says otherwise: if class statistics tell how familiar an image is, or
    the threshold was set by hand. One for the highest probability comes partly from generated features, and may reject
    many images of old classes."""
    return about.threshold is not None and (classifier.familiarity is not None or about.threshold_chosen)


def unlabeled_images(files: Sequence[str], about: ModelInfo, workers: int) -> FileImages:
    """Files as images of the model's size and channels, without labels."""
    labels = torch.zeros(len(files)).long()
    return FileImages(np.array(files), labels, about.preprocess.resize, workers, about.channels)


def predict_files(
    classifier: Classifier,
    about: ModelInfo,
    files: Sequence[str],
    *,
    top: int = 1,
    reject: bool | None = None,
    workers: int = 1,
) -> Iterator[Prediction]:
    """A prediction for every file, in their order; files are decoded ahead while others are computed. An image that is
    less familiar than the model's threshold is rejected, if that can be relied on (`rejects_by_default`); `reject`
    insists on that, or prevents it."""
    reject = rejects_by_default(classifier, about) if reject is None else reject
    images = unlabeled_images(files, about, workers)
    batches = torch.split(torch.arange(len(files)), BATCH)
    for batch, (rows, pixels, unreadable) in zip(batches, images.decode_batches(batches), strict=True):
        probability, familiarity = predict_pixels(classifier, about, pixels)
        rejected = is_rejected(about, familiarity) if reject else torch.zeros(len(rows), dtype=torch.bool)
        by_row = dict(zip(rows.tolist(), zip(probability, rejected.tolist(), strict=True), strict=True))
        errors = iter(unreadable)  # "file (reason)" for each row that could not be read
        for row, path in ((row, files[row]) for row in batch.tolist()):
            if row in by_row:
                yield _prediction(path, about, top, *by_row[row])
            else:
                yield Prediction(path, error=unreadable_reason(path, next(errors)))


def nothing_readable(unreadable: Sequence[Prediction]) -> EtagError:
    """The error if no image can be predicted."""
    if len(unreadable) == 1:
        return EtagError(f"{unreadable[0].path} cannot be read: {unreadable[0].error}.")
    reasons = ", ".join(f"{prediction.path} ({prediction.error})" for prediction in unreadable)
    return EtagError(f"none of these {len(unreadable)} files can be read: {reasons}.")


def _prediction(path: str, about: ModelInfo, top: int, probability: Tensor, rejected: bool) -> Prediction:
    best = probability.topk(min(top, len(probability)))
    names = tuple(about.classes[place] for place in best.indices.tolist())
    return Prediction(path, names, tuple(best.values.tolist()), rejected)
