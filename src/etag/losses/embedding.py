"""Embedding distillation: Eqs. (2), (3), (4), and the solver's objectives (8), (9) they enter."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from etag.losses.classification import new_cross_entropy_weights


def auxiliary_cross_entropy(auxiliary: Sequence[Tensor], view_labels: Tensor) -> Tensor:
    """Eq. (2), `eq:2`: summed over stages, averaged over images and their views."""
    return torch.stack([functional.cross_entropy(logits, view_labels) for logits in auxiliary]).sum()


def feature_distance(
    student: Tensor, teacher: Tensor, reduction: Literal["mean_norm", "frobenius"] = "mean_norm"
) -> Tensor:
    """Eq. (3), `eq:3`: mean over images of the 2-norm of the feature difference.

    `frobenius` is the release's single norm of the whole difference matrix; it grows with the batch.
    """
    norms: Tensor = torch.linalg.vector_norm(student - teacher, dim=None if reduction == "frobenius" else 1)
    return norms.mean()


def auxiliary_divergence(student: Sequence[Tensor], teacher: Sequence[Tensor], tau: float) -> Tensor:
    """Eq. (4), `eq:4`: tau^2 KL(teacher || student) at temperature tau, summed over stages, averaged over views.

    The student is compared on the teacher's outputs: its first ones, where it has grown since.
    """
    terms = []
    for new, old in zip(student, teacher, strict=True):
        log_p = functional.log_softmax(old / tau, dim=1)
        log_q = functional.log_softmax(new[:, : old.shape[1]] / tau, dim=1)
        terms.append(functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True))
    return tau**2 * torch.stack(terms).sum()


def base_weights() -> dict[str, float]:
    """Eq. (8), `eq:8`: the solver's objective at the base task."""
    return {"ce": 1.0, "aux_ce": 1.0}


def solver_weights(lambda_ce: float, lambda_kd: float, normalize: bool = False) -> dict[str, float]:
    """Eq. (9), `eq:10`: the solver's objective at later tasks."""
    return new_cross_entropy_weights(lambda_ce, normalize) | {"l2": lambda_kd, "kl": lambda_kd}
