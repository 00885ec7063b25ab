"""Calibrating a classifier after a lesson, without images of old classes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from etag.evaluation.calibration import fit_temperature
from etag.learner.versions import ModelInfo
from etag.methods.abilities import GeneratesFeatures
from etag.methods.base import AnyMethod

GENERATED = 100  # features per old class
REJECTED = 0.05  # share of images of known classes that may be rejected as unknown
ENOUGH = round(1 / REJECTED)  # images and generated features: with fewer, nobody knows which are the lowest 5 %


@dataclass(frozen=True)
class Calibration:
    """The temperature and threshold of a classifier, and its accuracy on generated features of old classes."""

    temperature: float
    threshold: float
    generated_accuracy: float | None  # None where the method generates no features


@torch.no_grad()
def calibrate(
    method: AnyMethod, scores: Tensor, labels: Tensor, held_out: int, old_classes: int, before: ModelInfo
) -> Calibration:
    """Fit temperature and threshold to log-probabilities of images and of generated old features. If too few images are
    `held_out` from training, both stay those of the model before the lesson; in a first lesson the temperature is
    fitted all the same, and nothing is rejected."""
    scores, labels, accuracy = scores.cpu(), labels.cpu(), None
    if old_classes and isinstance(method, GeneratesFeatures):
        old = torch.arange(old_classes).repeat_interleave(GENERATED)
        features = method.generate_features(old)
        if features is not None:
            generated = method.classifier().classify(features).cpu()
            accuracy = (generated.argmax(1) == old).double().mean().item()
            scores, labels = torch.cat([scores, generated]), torch.cat([labels, old])
            held_out += len(old)
    few = held_out < ENOUGH
    if few and old_classes:
        return Calibration(before.temperature, before.threshold, accuracy)
    temperature = fit_temperature(scores, labels)
    confidence = (scores / temperature).softmax(1).amax(1)
    return Calibration(temperature, 0.0 if few else confidence.quantile(REJECTED).item(), accuracy)
