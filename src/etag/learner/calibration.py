"""Calibrating a classifier after a lesson, without images of old classes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from etag.losses.temperature import fit_temperature
from etag.methods.abilities import GeneratesFeatures
from etag.methods.base import AnyMethod

GENERATED = 100  # features per old class
REJECTED = 0.05  # share of images of known classes that may be rejected as unknown


@dataclass(frozen=True)
class Calibration:
    """The temperature and threshold of a classifier, and its accuracy on generated features of old classes."""

    temperature: float
    threshold: float
    generated_accuracy: float | None  # None where the method generates no features


@torch.no_grad()
def calibrate(method: AnyMethod, scores: Tensor, labels: Tensor, old_classes: int) -> Calibration:
    """Fit temperature and threshold to log-probabilities of held-out images and of generated old features."""
    scores, labels, accuracy = scores.cpu(), labels.cpu(), None
    if old_classes and isinstance(method, GeneratesFeatures):
        old = torch.arange(old_classes).repeat_interleave(GENERATED)
        features = method.generate_features(old)
        if features is not None:
            generated = method.classifier().classify(features).cpu()
            accuracy = (generated.argmax(1) == old).double().mean().item()
            scores, labels = torch.cat([scores, generated]), torch.cat([labels, old])
    temperature = fit_temperature(scores, labels)
    confidence = (scores / temperature).softmax(1).amax(1)
    return Calibration(temperature, confidence.quantile(REJECTED).item(), accuracy)
