"""Losses on similarities rather than logits."""

import torch
from torch import Tensor


def margin_ranking(cosines: Tensor, labels: Tensor, old: int, margin: float = 0.5, hardest: int = 2) -> Tensor:
    """Lucir (Hou et al., 2019): an old image's own cosine shall exceed those of the new classes it is nearest to.

    `cosines` are without scale. The mean is over the old images of the batch and their `hardest` new classes; it is 0
    where there are none. (Over several processes it is the mean of theirs.)
    """
    own = cosines.gather(1, labels[:, None])
    rivals = cosines[:, old:].topk(min(hardest, cosines.shape[1] - old), dim=1).values
    hinge = (margin - own + rivals).clamp(min=0)
    is_old = (labels < old)[:, None].expand_as(hinge)
    return (hinge * is_old).sum() / is_old.sum().clamp(min=1)


def nca_loss(scaled: Tensor, labels: Tensor, scale: Tensor, margin: float = 0.6) -> Tensor:
    """PODNet's NCA loss: the positive, less a margin, against all other classes; what is won is not pushed further.

    `scaled` are the similarities times the learned scale.
    """
    positive = scaled.gather(1, labels[:, None]).squeeze(1) - scale * margin
    others = scaled.scatter(1, labels[:, None], -torch.inf).logsumexp(1)
    return (others - positive).clamp(min=0).mean()


def nca_loss_as_released(scaled: Tensor, labels: Tensor) -> Tensor:
    """The same with the quirks of the authors' code.

    The margin is taken from every similarity, and so cancels; the positive that is left out of the denominator still
    adds exp(0) to it, once the largest is subtracted.
    """
    shifted = scaled - scaled.max(1, keepdim=True).values
    positive = shifted.gather(1, labels[:, None]).squeeze(1)
    others = shifted.scatter(1, labels[:, None], 0.0).logsumexp(1)
    return (others - positive).mean()
