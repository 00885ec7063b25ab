"""The temperature by which scores are divided, so that their softmax gives calibrated probabilities."""

import math

from torch import Tensor
from torch.nn import functional

LEAST, MOST = 0.005, 20.0  # ridge regression's scores, between 0 and 1, need small ones


def fit_temperature(scores: Tensor, labels: Tensor) -> float:
    """The divisor of log-probabilities with the lowest cross-entropy, classes weighted equally (Guo et al., 2017). The
    labels are smoothed by 1 / (images + 2), as Platt (1999) does: that a few images are all right does not mean that
    every prediction is certain."""
    from scipy.optimize import minimize_scalar  # imported here: it takes as long as a small command

    counts = labels.bincount(minlength=scores.shape[1]).to(scores)
    weights = (1 / counts)[labels]

    def loss(log_temperature: float) -> float:
        scaled = scores / math.exp(log_temperature)
        losses = functional.cross_entropy(scaled, labels, reduction="none", label_smoothing=1 / (len(labels) + 2))
        return float((weights * losses).sum())

    return math.exp(minimize_scalar(loss, bounds=(math.log(LEAST), math.log(MOST)), method="bounded").x)
