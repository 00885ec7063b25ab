"""Whether what a method keeps holds a copy of what it was shown."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

LIKE = 0.9999  # cosine from which on one vector is taken for a copy of another


def copies(kept: Mapping[str, Tensor], shown: Mapping[str, Tensor], like: float = LIKE) -> list[str]:
    """Names of kept tensors that hold a row (or any aligned piece) which points in the direction of something shown.

    `shown` holds images or features, one a row. A copy is found whatever it was multiplied by, and however many of
    them were strung together; it is not found where it was permuted, encrypted or otherwise disguised.
    """
    found = []
    for name, tensor in kept.items():
        for what, rows in shown.items():
            size = rows[0].numel()
            if tensor.numel() == 0 or tensor.numel() % size:
                continue
            pieces = functional.normalize(tensor.detach().reshape(-1, size).double())
            nearest = max(
                (pieces @ functional.normalize(some.reshape(len(some), size).double()).T).max().item()
                for some in torch.split(rows, 1024)
            )
            if nearest > like:
                found.append(f"{name} holds a copy of one of the {what}")
    return found
