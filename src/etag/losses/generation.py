"""Losses of the feature generators: Eqs. (6), (7) and (10), and those of a Wasserstein GAN.

Log-likelihoods are those of a Gaussian with unit variance, up to a constant.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from etag.core.precision import at_least_single, in_single_precision


@in_single_precision
def prior_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Eq. (6), first line: KL(q(z | f, y) || N(0, I)), summed over latent dimensions, averaged over rows."""
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()


@in_single_precision
def sampled_divergence(noise: Tensor, log_variance: Tensor, log_prior: Tensor) -> Tensor:
    """Return a one-sample estimate of KL(q(z | f) || p(z)): log q(z | f) - log p(z), averaged over rows. It serves
    priors whose divergence has no closed form. `noise` is the standard normal sample that z was computed from,
    `log_prior` is log p(z), one value per row."""
    log_posterior = -0.5 * (noise.square() + log_variance + math.log(2 * math.pi)).sum(1)
    return (log_posterior - log_prior).mean()


@in_single_precision
def reparameterize(mean: Tensor, log_variance: Tensor, noise: Tensor) -> Tensor:
    """Return a sample of N(mean, exp(log_variance)) from standard normal noise; differentiable in both parameters."""
    return mean + noise * torch.exp(0.5 * log_variance)


@in_single_precision
def squared_error(generated: Tensor, target: Tensor, half: bool = True, mean_over_rows: bool = True) -> Tensor:
    """-log p(f | y, z), second line of Eq. (6), and Eq. (7): half the squared distance, summed over the feature,
    averaged over rows. The release omits the half (`half=False`), and in Eq. (7) sums over rows
    (`mean_over_rows=False`)."""
    error = (generated - target).square().sum()
    return error * ((0.5 if half else 1.0) / (len(generated) if mean_over_rows else 1))


@in_single_precision
def pixel_cross_entropy(generated: Tensor, target: Tensor) -> Tensor:
    """-log p(x | y, z) of Bernoulli pixels: binary cross-entropy, summed over the image, averaged over rows."""
    return functional.binary_cross_entropy(generated, target, reduction="sum") / len(generated)


@in_single_precision
def critic_loss(real_scores: Tensor, generated_scores: Tensor) -> Tensor:
    """Wasserstein critic loss: its mean score of generated features minus its mean score of real ones."""
    return generated_scores.mean() - real_scores.mean()


def gradient_penalty(scores: Tensor, inputs: Tensor) -> Tensor:
    """WGAN-GP (Gulrajani et al., 2017): mean over rows of (norm of the critic's gradient - 1)^2. `scores` was computed
    from `inputs`, points between real and generated features; needs second-order gradients."""
    (gradient,) = torch.autograd.grad(scores.sum(), inputs, create_graph=True)
    norms: Tensor = torch.linalg.vector_norm(at_least_single(gradient), dim=1)
    return (norms - 1).square().mean()
