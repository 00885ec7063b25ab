"""How familiar a feature is: whether an image looks like those of a known class, or like nothing that was learned."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from etag.models.modules import StoredTensors
from etag.models.structure import Rebuildable

SMALLEST_VARIANCE = 1e-6  # added to every variance, as a share of the mean square of the class means


class Familiarity(StoredTensors, Rebuildable):
    """The relative Mahalanobis distance (Ren et al., 2021): how much nearer a feature x is to its nearest class than to
    the images of all classes together. With one covariance W within classes, class means m_k, their shares p_k of the
    images, the mean m of all images and the covariance B of the class means, it is d(x) - min_k d_k(x) with

        d_k(x) = (x - m_k)' W^-1 (x - m_k)  and  d(x) = (x - m)' (W + B)^-1 (x - m).

    Both contain (x - m)' W^-1 (x - m), which cancels. What is left depends on x only through one number per class,
    a = D W^-1 (x - m), where the rows of D are m_k - m: so `weight` has one row per class, and no covariance is stored.
    """

    weight: Tensor  # D W^-1: (classes, size)
    bias: Tensor  # -D W^-1 m
    distances: Tensor  # from the mean of all images to each class mean: the diagonal of D W^-1 D'
    mixing: Tensor  # (diag(1 / p) + D W^-1 D')^-1: (classes, classes)

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        nothing = torch.empty(0)
        self.store(weight=torch.empty(0, size), bias=nothing, distances=nothing, mixing=torch.empty(0, 0))

    def fit(self, means: Tensor, counts: Tensor, covariance: Tensor) -> None:
        """Compute it from the mean and the number of images of each class, and the covariance within classes."""
        share = counts.clamp(min=1) / counts.clamp(min=1).sum()
        mean = share @ means
        smallest = (SMALLEST_VARIANCE * means.square().mean()).clamp(min=1e-12)  # classes of a single image vary by 0
        factor: Any = torch.linalg.cholesky(covariance + smallest * torch.eye(self.size).to(covariance))
        weight = torch.cholesky_solve((means - mean).T, factor).T
        between = weight @ (means - mean).T
        tensors = {
            "weight": weight,
            "bias": -weight @ mean,
            "distances": between.diagonal(),
            "mixing": torch.linalg.inv(torch.diag(1 / share) + between),
        }
        self.store(**{name: tensor.float().contiguous() for name, tensor in tensors.items()})

    def forward(self, features: Tensor) -> Tensor:
        """One number per image; higher is more familiar."""
        along = functional.linear(features, self.weight, self.bias)
        return (2 * along - self.distances).amax(1) - ((along @ self.mixing) * along).sum(1)

    def check(self, classes: int) -> None:
        """Raise a ValueError unless the tensors are those of this number of classes."""
        expected = {
            "weight": (classes, self.size),
            "bias": (classes,),
            "distances": (classes,),
            "mixing": (classes, classes),
        }
        for name, shape in expected.items():
            if (found := tuple(getattr(self, name).shape)) != shape:
                raise ValueError(f"the tensor 'familiarity.{name}' has the shape {found}, but {shape} is expected")
