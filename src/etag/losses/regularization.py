"""Penalties on changes of the weights."""

from torch import Tensor


def quadratic_penalty(weights: Tensor, anchor: Tensor, importance: Tensor) -> Tensor:
    """EWC (Kirkpatrick et al., 2017), MAS (Aljundi et al., 2018): half the importance-weighted squared distance."""
    return 0.5 * (importance * (weights - anchor).square()).sum()
