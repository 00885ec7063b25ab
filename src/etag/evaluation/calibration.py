"""Calibration: whether probabilities agree with how often predictions are right."""

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

BINS = 15


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
