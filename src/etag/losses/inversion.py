"""Losses that train a generator of images from a frozen classifier alone: ABD (Smith et al., 2021)."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from etag.core.precision import in_single_precision

BLUR = math.sqrt(2)  # standard deviation in pixels: the release's kernel is exp(-(x / 2)^2)


@in_single_precision
def confidence_loss(logits: Tensor, tau: float) -> Tensor:
    """Return the cross-entropy at temperature tau with the most likely class as the label."""
    return functional.cross_entropy(logits / tau, logits.argmax(1))


@in_single_precision
def class_imbalance(logits: Tensor) -> Tensor:
    """Return how unevenly a batch is spread over K classes: 1 + sum p log p / log K, where p is the mean softmax. It is
    0 when all classes have an equal share and 1 when one class has all."""
    classes = logits.shape[1]
    if classes == 1:
        return logits.sum() * 0
    share = logits.softmax(1).mean(0)
    return 1 + torch.xlogy(share, share).sum() / math.log(classes)


@in_single_precision
def statistics_divergence(mean: Tensor, variance: Tensor, target_mean: Tensor, target_variance: Tensor) -> Tensor:
    """Return KL(N(target) || N(mean, variance)) of each channel, averaged over channels."""
    variance, target_variance = variance + 1e-8, target_variance + 1e-8
    ratio = (target_variance + (target_mean - mean).square()) / variance
    return 0.5 * (torch.log(variance / target_variance) + ratio - 1).mean()


@in_single_precision
def smoothness_penalty(images: Tensor) -> Tensor:
    """Return the mean squared difference of images and their Gaussian blur (5 x 5 pixels, edges reflected)."""
    channels = images.shape[1]
    line = torch.exp(-torch.arange(-2, 3, dtype=images.dtype, device=images.device).square() / (2 * BLUR**2))
    kernel = (line[:, None] * line / line.sum().square()).expand(channels, 1, 5, 5)
    blurred = functional.conv2d(functional.pad(images, (2,) * 4, mode="reflect"), kernel, groups=channels)
    return functional.mse_loss(images, blurred)
