"""The temperature by which scores are divided, so that their softmax gives calibrated probabilities."""

import math

from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn import functional

LEAST, MOST = 0.005, 20.0  # ridge regression's scores, between 0 and 1, need small ones


def fit_temperature(scores: Tensor, labels: Tensor) -> float:
    """The divisor of log-probabilities with the lowest cross-entropy, classes weighted equally (Guo et al., 2017)."""
    counts = labels.bincount(minlength=scores.shape[1]).to(scores)
    weights = (1 / counts)[labels]

    def loss(log_temperature: float) -> float:
        losses = functional.cross_entropy(scores / math.exp(log_temperature), labels, reduction="none")
        return float((weights * losses).sum())

    return math.exp(minimize_scalar(loss, bounds=(math.log(LEAST), math.log(MOST)), method="bounded").x)
