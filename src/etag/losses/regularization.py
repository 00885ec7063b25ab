"""Penalties on the weights themselves."""

from torch import Tensor


def quadratic_penalty(weights: Tensor, anchor: Tensor, importance: Tensor) -> Tensor:
    """EWC (Kirkpatrick et al., 2017), MAS (Aljundi et al., 2018): half the squared distance, by importance."""
    return 0.5 * (importance * (weights - anchor).square()).sum()
