"""Losses on similarities between features and class vectors."""

import torch
from torch import Tensor

from etag.core.precision import in_single_precision


@in_single_precision
def margin_ranking(cosines: Tensor, labels: Tensor, old: int, margin: float = 0.5, hardest: int = 2) -> Tensor:
    """Lucir (Hou et al., 2019): hinge loss that keeps old images closer to their class than to the new classes.
    `cosines` are not scaled. For each old image (label < `old`), the cosine of its own class should exceed those of the
    `hardest` most similar new classes by `margin`. The mean is over these pairs of one process; it is 0 if the batch
    has no old image."""
    own = cosines.gather(1, labels[:, None])
    rivals = cosines[:, old:].topk(min(hardest, cosines.shape[1] - old), dim=1).values
    hinge = (margin - own + rivals).clamp(min=0)
    is_old = (labels < old)[:, None].expand_as(hinge)
    return (hinge * is_old).sum() / is_old.sum().clamp(min=1)


@in_single_precision
def nca_loss(scaled: Tensor, labels: Tensor, scale: Tensor, margin: float = 0.6) -> Tensor:
    """PODNet's NCA loss, averaged over rows: log-sum-exp over the wrong classes minus the right class's similarity.
    `scaled` holds similarities times the learned `scale`. The right class is lowered by `margin`; a row whose right
    class still wins adds nothing."""
    positive = scaled.gather(1, labels[:, None]).squeeze(1) - scale * margin
    others = scaled.scatter(1, labels[:, None], -torch.inf).logsumexp(1)
    return (others - positive).clamp(min=0).mean()


@in_single_precision
def nca_loss_as_released(scaled: Tensor, labels: Tensor) -> Tensor:
    """Return the NCA loss as the authors' code computes it, which differs from the paper. The margin is subtracted from
    every similarity, so it cancels. After the largest similarity is subtracted from all, the right class is set to 0
    instead of being removed, so it adds exp(0) to the sum over the wrong classes."""
    shifted = scaled - scaled.max(1, keepdim=True).values
    positive = shifted.gather(1, labels[:, None]).squeeze(1)
    others = shifted.scatter(1, labels[:, None], 0.0).logsumexp(1)
    return (others - positive).mean()
