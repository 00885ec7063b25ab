"""What a student takes over from its teacher, besides Eqs. (3) and (4): logits, attention, features, maps."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def logit_distillation(student: Tensor, teacher: Tensor, tau: float) -> Tensor:
    """LwF (Li and Hoiem, 2017): cross-entropy of the student's outputs with the teacher's, both at temperature tau.

    There is no factor tau^2. Its least value is the teacher's entropy, not zero; there its gradient vanishes.
    """
    return functional.cross_entropy(student / tau, (teacher / tau).softmax(1))


def padded_softmax(answers: Tensor, classes: int) -> Tensor:
    """Probabilities over the classes that were known; those that came since have none."""
    return functional.pad(answers.softmax(1), (0, classes - answers.shape[1]))


def padded_distillation(student: Tensor, teacher: Tensor, tau: float) -> Tensor:
    """BI-R (van de Ven et al., 2020): cross-entropy with the teacher's outputs at temperature tau, times tau^2.

    New classes, of which the teacher knows nothing, compete, but are never the answer.
    """
    wanted = padded_softmax(teacher / tau, student.shape[1])
    return tau**2 * functional.cross_entropy(student / tau, wanted)


def cosine_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """1 - cos of the features, averaged over images: Lucir's less-forget constraint, and POD-flat."""
    return (1 - functional.cosine_similarity(student, teacher)).mean()


def class_activation_map(maps: Tensor, weights: Tensor) -> Tensor:
    """Grad-CAM at the last stage, in closed form; `weights` has a row an image, that of the class to be explained.

    Before global pooling and a linear layer, a logit's gradient on a map is the class's weight over the map's size.
    """
    size = maps.shape[2] * maps.shape[3]
    return functional.relu(torch.einsum("nchw,nc->nhw", maps, weights / size))


def gradient_activation_map(maps: Tensor, logits: Tensor, create_graph: bool) -> Tensor:
    """Grad-CAM (Selvaraju et al., 2017) at any stage.

    `logits` holds the logit to be explained, one an image, computed from the maps. With `create_graph` the result can
    be differentiated: that takes second-order gradients.
    """
    (gradient,) = torch.autograd.grad(logits.sum(), maps, create_graph=create_graph)
    return functional.relu((maps * gradient.mean((2, 3), keepdim=True)).sum(1))


def attention_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """LwM (Dhar et al., 2019): maps as vectors of unit length; sum of absolute differences, averaged over images."""
    student, teacher = (functional.normalize(attention.flatten(1)) for attention in (student, teacher))
    return (student - teacher).abs().sum(1).mean()


def pod_spatial(student: Sequence[Tensor], teacher: Sequence[Tensor]) -> Tensor:
    """PODNet (Douillard et al., 2020): squared maps pooled along each axis, as vectors of unit length.

    The norm of the difference, averaged over images and stages.
    """
    distances = [
        torch.linalg.vector_norm(_pooled(new) - _pooled(old), dim=1).mean()
        for new, old in zip(student, teacher, strict=True)
    ]
    return torch.stack(distances).mean()


def _pooled(maps: Tensor) -> Tensor:
    """A vector an image: the sums over the width, then those over the height."""
    energy = maps.square()
    return functional.normalize(torch.cat([energy.sum(3).flatten(1), energy.sum(2).flatten(1)], dim=1))
