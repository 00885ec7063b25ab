"""Sums over the features of each class, from which closed-form heads are computed. No feature of an image is stored.

The sums do not depend on the order of the images, so a head that is computed from them is the same whether the classes
came together or task by task.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from etag.core.work import Batch
from etag.models.backbone import Backbone
from etag.models.modules import StoredTensors

Transform = Callable[[Tensor], Tensor]  # of features, one row per image


class ClassStatistics(StoredTensors):
    """For each class: the number of its images (`count`), the sum of their features x (`total`), and the sum of their
    outer products x x' (`moment`): of each class (classes, size, size), or of all classes together (size, size). All in
    float64: differences of large sums are taken."""

    count: Tensor
    total: Tensor
    moment: Tensor

    def __init__(self, size: int, per_class: bool = False) -> None:
        super().__init__()
        self.per_class = per_class
        moment = torch.zeros((0, size, size) if per_class else (size, size), dtype=torch.float64)
        self.store(count=moment.new_zeros(0), total=moment.new_zeros(0, size), moment=moment)

    def grow(self, classes: int) -> None:
        """Add empty sums of new classes."""
        self.store(count=_longer(self.count, classes), total=_longer(self.total, classes))
        if self.per_class:
            self.store(moment=_longer(self.moment, classes))

    def add(self, labels: Sequence[int], sums: dict[str, Tensor]) -> None:
        """Add the result of a `StatisticsCollector` pass over images of these classes."""
        added = {name: getattr(self, name).clone() for name in sums}
        for name, value in sums.items():
            if added[name].ndim == 2 and name == "moment":
                added[name] += value.to(added[name])
            else:
                added[name][list(labels)] += value.to(added[name])
        self.store(**added)

    def remove_class(self, label: int) -> bool:
        """Remove a class; returns whether nothing of it is left. With moments of all classes together, how its features
        vary around their mean cannot be taken out again; their mean is."""
        rest, mean = [row for row in range(len(self.count)) if row != label], self.means[label]
        kept = self.moment[rest] if self.per_class else self.moment - self.count[label] * torch.outer(mean, mean)
        self.store(count=self.count[rest], total=self.total[rest], moment=kept)
        return self.per_class

    @property
    def means(self) -> Tensor:
        """The mean feature of each class."""
        return self.total / self.count.clamp(min=1)[:, None]

    @property
    def moment_of_all(self) -> Tensor:
        """The sum of outer products over the images of all classes."""
        return self.moment.sum(0) if self.per_class else self.moment

    @property
    def scatter(self) -> Tensor:
        """The sum of (x - m)(x - m)' over all images, where m is the mean of the image's class."""
        return self.moment_of_all - (self.means.T * self.count) @ self.means

    def covariance(self, label: int) -> Tensor:
        """The covariance of one class; moments per class are needed."""
        mean = self.means[label]
        count = self.count[label].clamp(min=2)
        return (self.moment[label] - self.count[label] * torch.outer(mean, mean)) / (count - 1)


def _longer(values: Tensor, rows: int) -> Tensor:
    return torch.cat([values, values.new_zeros(rows, *values.shape[1:])])


class StatisticsCollector(nn.Module):
    """The sums of a batch, to be added up over a data pass and over all processes; one row for each of `labels`."""

    def __init__(self, backbone: Backbone, labels: Sequence[int], per_class: bool, transform: Transform) -> None:
        super().__init__()
        self.backbone, self._labels, self._per_class, self._transform = backbone, labels, per_class, transform

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """`count`, `total` and `moment` as `ClassStatistics` has them."""
        features = self._transform(self.backbone(batch.inputs).double())
        return class_sums(features, batch.labels, self._labels, self._per_class)


def class_sums(features: Tensor, labels: Tensor, classes: Sequence[int], per_class: bool = False) -> dict[str, Tensor]:
    """`count`, `total` and `moment` of features in float64, with one row for each of `classes`."""
    own = labels[:, None] == torch.tensor(classes, device=labels.device)  # (rows, classes)
    one_hot = own.to(features)
    sums = {"count": one_hot.sum(0), "total": one_hot.T @ features}
    if not per_class:
        return sums | {"moment": features.T @ features}
    by_class = (features[rows] for rows in own.T)
    return sums | {"moment": torch.stack([rows.T @ rows for rows in by_class])}


def shrunk(covariance: Tensor, share: float) -> Tensor:
    """A covariance moved towards a multiple of the identity with the same trace: `share` 1 is that multiple."""
    mean = covariance.diagonal().mean()
    return (1 - share) * covariance + share * mean * torch.eye(len(covariance)).to(covariance)


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """matrix^-1 right for a symmetric positive definite matrix."""
    factor: Any = torch.linalg.cholesky(matrix)
    return torch.cholesky_solve(right, factor)
