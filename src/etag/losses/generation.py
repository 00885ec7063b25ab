"""The generator's losses: Eqs. (6), (7) and its objective (10).

The log-likelihoods are those of a Gaussian with unit variance, up to a constant.
"""

import torch
from torch import Tensor


def prior_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Eq. (6), `eq:6`, first line: KL(q(z | f, y) || N(0, I)), summed over the code, averaged over rows."""
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()


def reparametrise(mean: Tensor, log_variance: Tensor, noise: Tensor) -> Tensor:
    """A sample of N(mean, exp(log_variance)) through which gradients pass."""
    return mean + noise * torch.exp(0.5 * log_variance)


def squared_error(made: Tensor, wanted: Tensor, half: bool = True, per_row: bool = True) -> Tensor:
    """-log p(f | y, z): second line of Eq. (6), `eq:6`, and Eq. (7).

    Half the squared distance, summed over the feature, averaged over rows. The release drops the half
    (`half=False`) and, for Eq. (7), does not average (`per_row=False`).
    """
    error = (made - wanted).square().sum()
    return error * ((0.5 if half else 1.0) / (len(made) if per_row else 1))


def new_weights(ratio: float = 0.0, normalise: bool = False, guide_old: bool = False) -> dict[str, float]:
    """Weights within Eq. (6), `eq:6`; `guide` is its third line, the cross-entropy of the frozen classifier.

    With the ratio of old to new classes, the release divides it by 1 + ratio (`normalise`) and guides what is made
    of old classes as well (`guide_old`); at the base task the ratio is 0.
    """
    share = 1 / (1 + ratio)
    guide = {"guide": share if normalise else 1.0, "guide_old": (1 - share) * guide_old}
    return {"kl": 1.0, "recon": 1.0, **guide, "match": 0.0}


def generator_weights(
    lambda_vae: float, ratio: float, normalise: bool = False, guide_old: bool = False
) -> dict[str, float]:
    """Eq. (10), `eq:11`: the generator's objective at later tasks; `match` is Eq. (7)."""
    return new_weights(ratio, normalise, guide_old) | {"match": lambda_vae}
