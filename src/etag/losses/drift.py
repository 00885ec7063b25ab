"""How features move while a backbone learns a task: what LDC (Gomez-Villa et al., 2024) learns of it, and what EFC
(Magistri et al., 2024) allows of it.

Throughout, f_old and f_new are the features of the same image before and after (or during) the task, one row each.
"""

import torch
from torch import Tensor
from torch.nn import functional

from etag.core.precision import in_single_precision


@in_single_precision
def map_error(mapped: Tensor, target: Tensor) -> Tensor:
    """LDC: mean squared difference of mapped old features and new features, over all numbers of all rows."""
    return functional.mse_loss(mapped, target)


@in_single_precision
def empirical_feature_matrix(logits: Tensor, weight: Tensor) -> Tensor:
    """EFC: E, the mean over rows of W' (diag(p) - p p') W, where p is the softmax of the logits and W has the head's
    rows. It is the Fisher information of the feature: d' E d is large if a step d changes the outputs. The head
    must be linear."""
    p, weight = logits.double().softmax(1), weight.double()
    spread = torch.diag(p.mean(0)) - p.T @ p / len(p)
    return (weight.T @ spread @ weight).to(logits)


@in_single_precision
def consolidation_penalty(student: Tensor, teacher: Tensor, matrix: Tensor, weight: float, damping: float) -> Tensor:
    """EFC: the mean over rows of d' (weight E + damping I) d, where d = f_new - f_old: moving a feature is expensive
    where the old outputs depend on it, and cheap elsewhere."""
    step = student - teacher
    return (weight * ((step @ matrix) * step).sum(1) + damping * step.square().sum(1)).mean()


@in_single_precision
def weighted_drift(old: Tensor, new: Tensor, means: Tensor, matrix: Tensor, sigma: float) -> Tensor:
    """EFC: an estimate of how far each class mean has moved: a weighted mean of f_new - f_old over the images. The
    distance of an image to a class is (f_old - mean)' E (f_old - mean). All distances, of all classes, are scaled to
    s between 0 (the farthest) and 1 (the nearest); the weight is exp(s / (2 sigma^2)), divided by its sum over the
    images."""
    x, m, e = old.double(), means.double(), matrix.double()
    projected = x @ e
    own = (projected * x).sum(1)  # f' E f of each image
    distances = own - 2 * m @ projected.T + ((m @ e) * m).sum(1)[:, None]  # (classes, images)
    far, near = distances.max(), distances.min()
    scaled = (far - distances) / (far - near).clamp(min=torch.finfo(far.dtype).tiny)
    weights = (scaled / (2 * sigma**2)).softmax(1)
    return (weights @ (new.double() - x)).to(means)


@in_single_precision
def balanced_cross_entropy(
    new_logits: Tensor, new_labels: Tensor, old_logits: Tensor, old_labels: Tensor, old_share: float
) -> Tensor:
    """Cross-entropy over all classes, where features of old classes have the weight `old_share` and those of new
    classes the rest, however many there are of each. With the share of old classes among all, each class has the same
    weight: EFC's prototype term, and the re-balancing of EFC++."""
    new, old = functional.cross_entropy(new_logits, new_labels), functional.cross_entropy(old_logits, old_labels)
    return (1 - old_share) * new + old_share * old
