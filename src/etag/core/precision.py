"""Half and single precision."""

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)


def at_least_single(value: Tensor) -> Tensor:
    """In single precision if it is in half, else as it is: for what is computed outside of autocast."""
    return value.float() if value.dtype in HALF else value
