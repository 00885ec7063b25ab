"""Losses that let a generator make images out of a frozen solver: ABD (Smith et al., 2021)."""

import math

import torch
from torch import Tensor
from torch.nn import functional

BLUR = math.sqrt(2)  # deviation in pixels: the release's kernel is exp(-(x / 2)^2)


def confidence(logits: Tensor, tau: float) -> Tensor:
    """Cross-entropy with the likeliest class, at temperature tau."""
    return functional.cross_entropy(logits / tau, logits.argmax(1))


def class_balance(logits: Tensor) -> Tensor:
    """How unevenly a batch is spread over K classes: 1 + sum p log p / log K, p being the mean softmax.

    0 where all classes have an equal share, 1 where one has all.
    """
    classes = logits.shape[1]
    if classes == 1:
        return logits.sum() * 0
    share = logits.softmax(1).mean(0)
    return 1 + torch.xlogy(share, share).sum() / math.log(classes)


def statistics_divergence(mean: Tensor, variance: Tensor, wanted_mean: Tensor, wanted_variance: Tensor) -> Tensor:
    """KL(N(wanted) || N(given)) of each channel, averaged over channels."""
    variance, wanted_variance = variance + 1e-8, wanted_variance + 1e-8
    ratio = (wanted_variance + (wanted_mean - mean).square()) / variance
    return 0.5 * (torch.log(variance / wanted_variance) + ratio - 1).mean()


def roughness(images: Tensor) -> Tensor:
    """Mean squared difference of images and their blurred selves: a Gaussian of 5 x 5 pixels, edges reflected."""
    channels = images.shape[1]
    line = torch.exp(-torch.arange(-2, 3, dtype=images.dtype, device=images.device).square() / (2 * BLUR**2))
    kernel = (line[:, None] * line / line.sum().square()).expand(channels, 1, 5, 5)
    blurred = functional.conv2d(functional.pad(images, (2,) * 4, mode="reflect"), kernel, groups=channels)
    return functional.mse_loss(images, blurred)
