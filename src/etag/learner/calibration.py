"""Calibrating a classifier after a lesson, without images of old classes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from etag.evaluation.calibration import fit_temperature
from etag.learner.versions import Lesson
from etag.methods.abilities import GeneratesFeatures, MeasuresFamiliarity
from etag.methods.base import AnyMethod

GENERATED = 100  # features per old class
REJECTED = 0.05  # share of images of known classes that may be rejected as unknown
ENOUGH = round(1 / REJECTED)  # of fewer images, that share is less than one


@dataclass(frozen=True)
class Calibration:
    """The temperature and threshold of a classifier, and its accuracy on generated features of old classes."""

    temperature: float
    threshold: float
    lesson_threshold: float  # from the images of this lesson alone
    generated_accuracy: float | None  # None where the method generates no features
    is_rough: bool  # whether there were too few held-out images for a reliable threshold


@torch.no_grad()
def calibrate(
    method: AnyMethod, predictions: dict[str, Tensor], old_classes: int, history: Sequence[Lesson]
) -> Calibration:
    """Fit temperature and threshold to the predictions for held-out images and for generated old features. `history`
    has the thresholds of earlier lessons."""
    scores, labels, familiarity = (predictions[name].cpu() for name in ("scores", "label", "familiarity"))
    accuracy = None
    if old_classes and isinstance(method, GeneratesFeatures):
        old = torch.arange(old_classes).repeat_interleave(GENERATED)
        features = method.generate_features(old)
        if features is not None:
            generated = method.classifier().classify(features).cpu()
            accuracy = (generated.argmax(1) == old).double().mean().item()
            scores, labels = torch.cat([scores, generated]), torch.cat([labels, old])
    temperature = fit_temperature(scores, labels)
    by_statistics = isinstance(method, MeasuresFamiliarity)
    if not by_statistics:
        familiarity = (scores / temperature).softmax(1).amax(1)
    is_rough = len(familiarity) < ENOUGH
    own = (familiarity.min() if is_rough else familiarity.quantile(REJECTED)).item()
    threshold = _combined(history, own, len(familiarity)) if by_statistics else own
    return Calibration(temperature, threshold, own, accuracy, is_rough)


def _combined(history: Sequence[Lesson], threshold: float, images: int) -> float:
    """The threshold of a model from those of its lessons; `threshold` is that of the newest, from so many images."""
    # The held-out images of earlier lessons are gone, so their thresholds cannot be measured again with the model as it
    # is now. In their mean each lesson has the weight of its number of held-out images: an approximation.
    known = [(threshold, images)]
    for past in history:
        if past.threshold is not None and past.evaluation is not None:
            known.append((past.threshold, past.evaluation.images))
    return sum(value * count for value, count in known) / sum(count for _, count in known)
