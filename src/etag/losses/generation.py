"""The generator's losses: Eqs. (6), (7) and its objective (10).

The log-likelihoods are those of a Gaussian with unit variance, up to a constant.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional


def prior_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Eq. (6), `eq:6`, first line: KL(q(z | f, y) || N(0, I)), summed over the code, averaged over rows."""
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()


def sampled_divergence(noise: Tensor, log_variance: Tensor, log_prior: Tensor) -> Tensor:
    """KL(q(z | f) || p(z)), estimated by one code a row: log q(z | f) - log p(z), averaged over rows.

    `noise` is what the code was made of, `log_prior` is log p(z). For priors whose divergence has no closed form.
    """
    log_posterior = -0.5 * (noise.square() + log_variance + math.log(2 * math.pi)).sum(1)
    return (log_posterior - log_prior).mean()


def reparameterize(mean: Tensor, log_variance: Tensor, noise: Tensor) -> Tensor:
    """A sample of N(mean, exp(log_variance)) through which gradients pass."""
    return mean + noise * torch.exp(0.5 * log_variance)


def squared_error(made: Tensor, wanted: Tensor, half: bool = True, per_row: bool = True) -> Tensor:
    """-log p(f | y, z): second line of Eq. (6), `eq:6`, and Eq. (7).

    Half the squared distance, summed over the feature, averaged over rows. The release drops the half
    (`half=False`) and, for Eq. (7), does not average (`per_row=False`).
    """
    error = (made - wanted).square().sum()
    return error * ((0.5 if half else 1.0) / (len(made) if per_row else 1))


def pixel_cross_entropy(made: Tensor, wanted: Tensor) -> Tensor:
    """-log p(x | y, z) of Bernoulli pixels: their cross-entropy, summed over the image, averaged over rows."""
    return functional.binary_cross_entropy(made, wanted, reduction="sum") / len(made)


def generator_weights(
    lambda_vae: float, ratio: float = 0.0, guidance: bool = True, normalize: bool = False, guide_old: bool = False
) -> dict[str, float]:
    """Eq. (10), `eq:11`: the generator's objective. At the base task lambda and the ratio are 0: Eq. (6).

    `guide` is the third line of Eq. (6), the cross-entropy of the frozen classifier; without `guidance` the generator
    is trained as any conditional VAE. The release divides it by 1 + ratio (`normalize`) and guides what is made of
    old classes as well (`guide_old`). `match` is Eq. (7).
    """
    share = 1 / (1 + ratio)
    guide, old = (share if normalize else 1.0), (1 - share) * guide_old
    return {
        "kl": 1.0,
        "recon": 1.0,
        "guide": guide * guidance,
        "guide_old": old * guidance,
        "match": lambda_vae,
    }


def critic_loss(real: Tensor, made: Tensor) -> Tensor:
    """Wasserstein critic: what it says of made features less what it says of real ones."""
    return made.mean() - real.mean()


def gradient_penalty(says: Tensor, at: Tensor) -> Tensor:
    """WGAN-GP (Gulrajani et al., 2017): how far the critic's gradient at points between real and made is from 1.

    `says` was computed from `at`. Takes second-order gradients.
    """
    (gradient,) = torch.autograd.grad(says.sum(), at, create_graph=True)
    norms: Tensor = torch.linalg.vector_norm(gradient, dim=1)
    return (norms - 1).square().mean()
