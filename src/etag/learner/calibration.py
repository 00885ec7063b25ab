"""Calibrating a classifier after a lesson, without images of old classes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from etag.learner.versions import REJECTED, Lesson, ModelInfo
from etag.losses.temperature import fit_temperature
from etag.methods.abilities import GeneratesFeatures, MeasuresFamiliarity
from etag.methods.base import AnyMethod

GENERATED = 100  # features per old class
ENOUGH = round(1 / REJECTED)  # images and generated features: with fewer, nobody knows which are the lowest 5 %


@dataclass(frozen=True)
class Calibration:
    """The temperature and threshold of a classifier."""

    temperature: float
    threshold: float | None  # None: there were never enough held-out images
    lesson_threshold: float | None  # from the images of this lesson alone


@torch.no_grad()
def calibrate(
    method: AnyMethod, predictions: dict[str, Tensor], held_out: int, old_classes: int, before: ModelInfo
) -> Calibration:
    """Fit temperature and threshold to predictions for images and for generated old features. If too few images are
    `held_out` from training, both stay those of the model `before` the lesson, with two exceptions: in a first lesson
    the temperature is fitted all the same, and thresholds by class statistics are combined over lessons."""
    scores, labels, familiarity = (predictions[name].cpu() for name in ("scores", "label", "familiarity"))
    if old_classes and isinstance(method, GeneratesFeatures):
        old = torch.arange(old_classes).repeat_interleave(GENERATED)
        features = method.generate_features(old)
        if features is not None:
            generated = method.classifier().classify(features).cpu()
            scores, labels = torch.cat([scores, generated]), torch.cat([labels, old])
            held_out += len(old)
    few = held_out < ENOUGH
    temperature = before.temperature if few and old_classes else fit_temperature(scores, labels)
    if isinstance(method, MeasuresFamiliarity):
        own = familiarity.quantile(REJECTED).item() if held_out else None
        return Calibration(temperature, _combined(before.history, own, held_out), own)
    if few:
        return Calibration(temperature, before.threshold, None)
    threshold = (scores / temperature).softmax(1).amax(1).quantile(REJECTED).item()
    return Calibration(temperature, threshold, threshold)


def _combined(history: Sequence[Lesson], threshold: float | None, images: int) -> float | None:
    """The threshold of a model from those of its lessons, if they held out enough images; `threshold` is that of the
    newest, from `images` held-out images."""
    # The held-out images of earlier lessons are gone, so their thresholds cannot be measured again with the model as it
    # is now. In their mean each lesson has the weight of its number of held-out images: an approximation.
    known = [] if threshold is None else [(threshold, images)]
    for past in history:
        if past.threshold is not None and past.evaluation is not None:
            known.append((past.threshold, past.evaluation.images))
    total = sum(count for _, count in known)
    return sum(value * count for value, count in known) / total if total >= ENOUGH else None
