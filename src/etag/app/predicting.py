"""Predicting the classes of images with a model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from etag.data.images import FileImages, unreadable_reason
from etag.learner.versions import ModelInfo, Name
from etag.models.classifier import Classifier

BATCH = 256


@dataclass(frozen=True)
class Prediction:
    """The classes of an image, the likeliest first; or why the image could not be read."""

    path: str
    classes: tuple[Name, ...] = ()
    probabilities: tuple[float, ...] = ()
    error: str | None = None


@torch.inference_mode()
def probabilities(classifier: Classifier, about: ModelInfo, pixels: Tensor) -> Tensor:
    """Probabilities for uint8 images of the model's size: one row per image, one column per class."""
    device = next(classifier.parameters()).device
    pieces = torch.split(pixels, BATCH)
    rows = [classifier(about.preprocess.centered(piece.to(device))).exp().cpu() for piece in pieces]
    return torch.cat(rows) if rows else torch.empty(0, len(about.classes))


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
    reject: bool = False,
    workers: int = 1,
) -> Iterator[Prediction]:
    """A prediction for every file, in their order; files are decoded ahead while others are computed. With `reject`, an
    image whose likeliest class is less probable than the model's threshold gets no class."""
    images = unlabeled_images(files, about, workers)
    batches = torch.split(torch.arange(len(files)), BATCH)
    for batch, (rows, pixels, unreadable) in zip(batches, images.decode_batches(batches), strict=True):
        by_row = dict(zip(rows.tolist(), probabilities(classifier, about, pixels), strict=True))
        errors = iter(unreadable)  # "file (reason)" for each row that could not be read
        for row, path in ((row, files[row]) for row in batch.tolist()):
            if row in by_row:
                yield _prediction(path, by_row[row], about, top, reject)
            else:
                yield Prediction(path, error=unreadable_reason(path, next(errors)))


def _prediction(path: str, probability: Tensor, about: ModelInfo, top: int, reject: bool) -> Prediction:
    best = probability.topk(min(top, len(probability)))
    if reject and best.values[0] < about.threshold:
        return Prediction(path)
    return Prediction(path, tuple(about.classes[place] for place in best.indices.tolist()), tuple(best.values.tolist()))
