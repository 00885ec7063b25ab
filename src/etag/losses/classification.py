"""Cross-entropy losses of the classifier head: Eq. (1), and the terms of Eq. (5)."""

from torch import Tensor
from torch.nn import functional

from etag.core.precision import in_single_precision


@in_single_precision
def cross_entropy(logits: Tensor, labels: Tensor, first: int = 0, end: int | None = None) -> Tensor:
    """Eq. (1): mean cross-entropy over the classes first .. end - 1; every label must be one of them."""
    return functional.cross_entropy(logits[:, first:end], labels - first)


@in_single_precision
def weighted_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor, first: int, end: int) -> Tensor:
    """Return `cross_entropy` with one weight per row; the weighted sum is divided by the number of rows."""
    return (weights * functional.cross_entropy(logits[:, first:end], labels - first, reduction="none")).mean()
