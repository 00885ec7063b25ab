"""Losses of embedding distillation, Eqs. (2) and (4), and of feature distillation, Eq. (3)."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from etag.core.precision import in_single_precision


@in_single_precision
def auxiliary_cross_entropy(auxiliary: Sequence[Tensor], view_labels: Tensor) -> Tensor:
    """Eq. (2): cross-entropy of the auxiliary logits, summed over stages, averaged over views of images."""
    return torch.stack([functional.cross_entropy(logits, view_labels) for logits in auxiliary]).sum()


@in_single_precision
def feature_distance(
    student: Tensor, teacher: Tensor, reduction: Literal["mean_norm", "frobenius"] = "mean_norm"
) -> Tensor:
    """Eq. (3): mean over images of the 2-norm of the feature difference. `frobenius`, as in the authors' release, is
    one norm of the whole (images, features) difference; it grows with the batch size."""
    norms: Tensor = torch.linalg.vector_norm(student - teacher, dim=None if reduction == "frobenius" else 1)
    return norms.mean()


@in_single_precision
def auxiliary_divergence(student: Sequence[Tensor], teacher: Sequence[Tensor], tau: float) -> Tensor:
    """Eq. (4): tau^2 KL(teacher || student) at temperature tau, summed over stages, averaged over views. Student
    and teacher have equally many outputs, because auxiliaries gain none after the base task."""
    terms = []
    for new, old in zip(student, teacher, strict=True):
        log_p = functional.log_softmax(old / tau, dim=1)
        log_q = functional.log_softmax(new / tau, dim=1)
        terms.append(functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True))
    return tau**2 * torch.stack(terms).sum()
