"""Distillation losses other than Eqs. (3) and (4): on logits, attention maps, features and stage maps."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from etag.core.precision import at_least_single, in_single_precision


@in_single_precision
def logit_distillation(student: Tensor, teacher: Tensor, tau: float) -> Tensor:
    """LwF (Li and Hoiem, 2017): cross-entropy of student with teacher logits, both at temperature tau. There is no
    factor tau^2. The minimum is the teacher's entropy, not zero; the gradient is zero there."""
    return functional.cross_entropy(student / tau, (teacher / tau).softmax(1))


@in_single_precision
def padded_softmax(logits: Tensor, classes: int) -> Tensor:
    """Return the softmax of the logits, padded with zeros to `classes` columns: newer classes have probability 0."""
    return functional.pad(logits.softmax(1), (0, classes - logits.shape[1]))


@in_single_precision
def padded_distillation(student: Tensor, teacher: Tensor, tau: float) -> Tensor:
    """BI-R (van de Ven et al., 2020): tau^2 times the cross-entropy with the teacher's softmax at temperature tau.
    Classes that the teacher does not know are in the student's softmax and have target probability 0."""
    target = padded_softmax(teacher / tau, student.shape[1])
    return tau**2 * functional.cross_entropy(student / tau, target)


@in_single_precision
def cosine_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Return 1 - cos of the features, averaged over images: Lucir's less-forget constraint, and POD-flat."""
    return (1 - functional.cosine_similarity(student, teacher)).mean()


@in_single_precision
def class_activation_map(maps: Tensor, weights: Tensor) -> Tensor:
    """Grad-CAM at the last stage in closed form: (images, height, width). `weights` has one row per image: the linear
    head's weights of the class to explain. With global pooling and a linear head, the gradient of a logit with respect
    to a map is the class's weight divided by the map's size."""
    size = maps.shape[2] * maps.shape[3]
    return functional.relu(torch.einsum("nchw,nc->nhw", maps, weights / size))


def gradient_activation_map(maps: Tensor, logits: Tensor, create_graph: bool) -> Tensor:
    """Grad-CAM (Selvaraju et al., 2017) at any stage: (images, height, width). `logits` are those to explain, one per
    image, computed from `maps`. With `create_graph` the result is differentiable (second-order gradients)."""
    (gradient,) = torch.autograd.grad(logits.sum(), maps, create_graph=create_graph)
    weights = at_least_single(gradient).mean((2, 3), keepdim=True)
    return functional.relu((maps * weights).sum(1))


@in_single_precision
def attention_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """LwM (Dhar et al., 2019): L1 distance of the flattened maps, each scaled to unit norm, averaged over images."""
    student, teacher = (functional.normalize(attention.flatten(1)) for attention in (student, teacher))
    return (student - teacher).abs().sum(1).mean()


@in_single_precision
def pod_spatial(student: Sequence[Tensor], teacher: Sequence[Tensor]) -> Tensor:
    """PODNet (Douillard et al., 2020): 2-norm of the difference of pooled maps, averaged over images and stages. The
    squared maps are pooled along the width and along the height, and the result is scaled to unit norm."""
    distances = [
        torch.linalg.vector_norm(_pooled(new) - _pooled(old), dim=1).mean()
        for new, old in zip(student, teacher, strict=True)
    ]
    return torch.stack(distances).mean()


def _pooled(maps: Tensor) -> Tensor:
    """Return one unit vector per image: the sums of the squared map over its width, then those over its height."""
    energy = maps.square()
    return functional.normalize(torch.cat([energy.sum(3).flatten(1), energy.sum(2).flatten(1)], dim=1))


@in_single_precision
def quadratic_penalty(weights: Tensor, anchor: Tensor, importance: Tensor) -> Tensor:
    """EWC (Kirkpatrick et al., 2017), MAS (Aljundi et al., 2018): half the importance-weighted squared distance."""
    return 0.5 * (importance * (weights - anchor).square()).sum()
