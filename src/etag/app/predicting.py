"""Recognizing images with a bundle."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from etag.app.bundle import About, Classifier, Name
from etag.data.images import FileImages

BATCH = 256


@dataclass(frozen=True)
class Prediction:
    """What an image shows, the likeliest first; or why it could not be read."""

    path: str
    classes: tuple[Name, ...] = ()
    probabilities: tuple[float, ...] = ()
    error: str | None = None


@torch.inference_mode()
def probabilities(classifier: Classifier, about: About, pixels: Tensor) -> Tensor:
    """Of uint8 images of the right size: one row an image, one column a class."""
    device = classifier.temperature.device
    rows = [classifier(about.preprocess.test(piece.to(device))).cpu() for piece in torch.split(pixels, BATCH)]
    return torch.cat(rows) if rows else torch.empty(0, len(about.classes))


def unlabeled_images(files: Sequence[str], about: About, workers: int) -> FileImages:
    """Files as images of the size that the bundle takes."""
    return FileImages(np.array(files), torch.zeros(len(files)).long(), about.preprocess.size, workers)


def predict_files(
    classifier: Classifier,
    about: About,
    files: Sequence[str],
    *,
    top: int = 1,
    reject: bool = False,
    workers: int = 1,
) -> Iterator[Prediction]:
    """An answer for every file, in their order; files are decoded ahead of what is computed.

    With `reject`, an image whose likeliest class is less probable than the bundle's threshold shows none of them: its
    answer has no class.
    """
    images = unlabeled_images(files, about, workers)
    batches = torch.split(torch.arange(len(files)), BATCH)
    for batch, (rows, pixels, complaints) in zip(batches, images.decode_batches(batches), strict=True):
        found = dict(zip(rows.tolist(), probabilities(classifier, about, pixels), strict=True))
        reasons = iter(complaints)
        for row in batch.tolist():
            yield (
                _answer(files[row], found[row], about, top, reject)
                if row in found
                else _failed(next(reasons), files[row])
            )


def _answer(path: str, likely: Tensor, about: About, top: int, reject: bool) -> Prediction:
    best = likely.topk(min(top, len(likely)))
    if reject and best.values[0] < about.threshold:
        return Prediction(path)
    return Prediction(
        path, tuple(about.classes[place] for place in best.indices.tolist()), tuple(best.values.tolist())
    )


def _failed(unreadable_error: str, path: str) -> Prediction:
    return Prediction(path, error=unreadable_error.removeprefix(f"{path} (").removesuffix(")"))
