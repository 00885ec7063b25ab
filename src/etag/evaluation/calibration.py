"""Calibration: whether probabilities agree with how often predictions are right."""

import math

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn import functional

BINS = 15


def fit_temperature(scores: Tensor, labels: Tensor) -> float:
    """The divisor of log-probabilities with the lowest cross-entropy, classes weighted equally (Guo et al., 2017). The
    labels are smoothed by 1 / (images + 2), as Platt (1999) does: that a few images are all right does not mean that
    every prediction is certain."""
    counts = labels.bincount(minlength=scores.shape[1]).to(scores)
    weights = (1 / counts)[labels]

    def loss(log_temperature: float) -> float:
        scaled = scores / math.exp(log_temperature)
        losses = functional.cross_entropy(scaled, labels, reduction="none", label_smoothing=1 / (len(labels) + 2))
        return float((weights * losses).sum())

    return math.exp(minimize_scalar(loss, bounds=(math.log(0.05), math.log(20)), method="bounded").x)


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """ECE: mean |accuracy - confidence| over bins of equal width in confidence, weighted by their numbers of images."""
    confidence, predictions = probabilities.double().max(1)
    right = (predictions == labels).double()
    which = (confidence * bins).ceil().long().clamp(1, bins) - 1
    summed = torch.zeros(2, bins, dtype=torch.float64).index_add_(1, which, torch.stack([right, confidence]))
    return float((summed[0] - summed[1]).abs().sum() / len(labels))


def unknown_auroc(known: Tensor, unknown: Tensor) -> float:
    """How well familiarity, one number per image, tells images of known classes from others: 0.5 is chance, 1 is
    always."""
    return float(roc_auc_score(np.repeat([1, 0], [len(known), len(unknown)]), torch.cat([known, unknown]).numpy()))
