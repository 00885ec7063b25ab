"""Sums over the features of each class, from which closed-form heads are computed. No feature of an image is stored.

The sums do not depend on the order of the images, so a head that is computed from them is the same whether the classes
came together or task by task.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from scipy.linalg import lapack
from torch import Tensor, nn

from etag.core.work import Batch
from etag.models.backbone import Backbone
from etag.models.modules import StoredTensors
from etag.models.prediction import Inverse

NEGLIGIBLE = 1e-10  # the share of the largest variance below which there is only rounding

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
        moment = torch.zeros((0, size, size) if per_class else (size, size), dtype=torch.float64)
        self.store(count=moment.new_zeros(0), total=moment.new_zeros(0, size), moment=moment)

    @property
    def per_class(self) -> bool:
        """Whether every class has its own second moments."""
        return self.moment.ndim == 3

    def grow(self, classes: int) -> None:
        """Add empty sums of new classes."""
        self.store(count=_longer(self.count, classes), total=_longer(self.total, classes))
        if self.per_class:
            self.store(moment=_longer(self.moment, classes))

    def bytes_with(self, classes: int) -> int:
        """The size of the second moments once there are this many more classes."""
        matrices = len(self.count) + classes if self.per_class else 1
        return matrices * self.moment.shape[-1] ** 2 * self.moment.element_size()

    def share(self) -> None:
        """From now on, have one matrix of second moments for all classes."""
        self.store(moment=self.moment_of_all)

    def add(self, labels: Sequence[int], sums: dict[str, Tensor]) -> None:
        """Add the result of a `StatisticsCollector` pass over images of these classes."""
        rows, sums = torch.tensor(labels, device=self.count.device), {key: v.to(self.count) for key, v in sums.items()}
        count, total = self.count.index_add(0, rows, sums["count"]), self.total.index_add(0, rows, sums["total"])
        self.store(count=count, total=total)
        if self.per_class:
            self.moment.index_add_(0, rows, sums["moment"])  # in place: it may be large
        else:
            self.moment += sums["moment"]

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

    @property
    def covariance_within(self) -> Tensor:
        """One covariance for all classes: of features around the mean of their class."""
        return self.scatter / (self.count.sum() - len(self.count)).clamp(min=1)

    def covariance(self, label: int) -> Tensor:
        """The covariance of one class; moments per class are needed."""
        mean = self.means[label]
        count = self.count[label].clamp(min=2)
        return (self.moment[label] - self.count[label] * torch.outer(mean, mean)) / (count - 1)


def _longer(values: Tensor, rows: int) -> Tensor:
    return torch.cat([values, values.new_zeros(rows, *values.shape[1:])])


class StatisticsCollector(nn.Module):
    """Adds up the sums of all batches of a data pass, in place: per class they may be large. One row for each of
    `labels`."""

    def __init__(self, backbone: Backbone, labels: Sequence[int], per_class: bool, transform: Transform) -> None:
        super().__init__()
        self.backbone, self._labels, self._per_class, self._transform = backbone, labels, per_class, transform
        self._sums: dict[str, Tensor] | None = None

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """`count`, `total` and `moment` of all batches so far, as `ClassStatistics` has them."""
        features = self._transform(self.backbone(batch.inputs).double())
        self._sums = class_sums(features, batch.labels, self._labels, self._per_class, self._sums)
        return self._sums


def class_sums(
    features: Tensor,
    labels: Tensor,
    classes: Sequence[int],
    per_class: bool = False,
    sums: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """`count`, `total` and `moment` of features, as `ClassStatistics.add` takes them; one row for each of `classes`.
    They are added to `sums`, if given."""
    count, size = len(classes), features.shape[1]
    if sums is None:
        shapes = {"count": (count,), "total": (count, size), "moment": (count, size, size)[0 if per_class else 1 :]}
        sums = {name: features.new_zeros(shape) for name, shape in shapes.items()}
    own = labels[:, None] == torch.tensor(classes, device=labels.device)  # (rows, classes)
    one_hot = own.to(features)
    sums["count"] += one_hot.sum(0)
    sums["total"].addmm_(one_hot.T, features)
    if not per_class:
        sums["moment"].addmm_(features.T, features)
        return sums
    for place in own.any(0).nonzero().flatten().tolist():
        rows = features[own[:, place]]
        sums["moment"][place].addmm_(rows.T, rows)
    return sums


def shrunk(covariance: Tensor, share: float) -> Tensor:
    """A covariance moved towards a multiple of the identity with the same trace: `share` 1 is that multiple."""
    mean = covariance.diagonal().mean()
    return (1 - share) * covariance + share * mean * torch.eye(len(covariance)).to(covariance)


def inverse_of_correlations(
    covariance: Tensor, variance_shrinkage: float = 1.0, covariance_shrinkage: float = 1.0
) -> Inverse:
    """R^-1 for the correlations R of the shrunk covariance, which is the covariance + c I + b 1 1' (FeCAM)."""
    size, variances = len(covariance), covariance.diagonal()
    b = covariance_shrinkage * (covariance.sum() - variances.sum()) / max(1, size * (size - 1))
    added = variance_shrinkage * variances.mean()
    c = (added - b).clamp(min=1e-12)
    directions, weights = inverse_of_sum(covariance, c, b)
    deviations = (variances + added).clamp(min=1e-12).sqrt()
    return deviations.square() / c, deviations[:, None] * directions, weights


def inverse_of_sum(covariance: Tensor, c: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """B and w with (S + c I + b 1 1')^-1 = I / c - B diag(w) B' for a covariance S. By Woodbury's identity, only a
    matrix as large as the rank of S is factored."""
    low = _root(covariance)
    size, rank = low.shape
    share = b / (c + size * b).clamp(min=1e-12)  # (c I + b 1 1')^-1 = (I - share 1 1') / c
    solved = (low - share * low.sum(0)) / c
    lower: Any = torch.linalg.cholesky(torch.eye(rank).to(low) + low.T @ solved)
    factor: Tensor = torch.linalg.solve_triangular(lower, solved.T, upper=False)
    ones = low.new_ones(max(size, rank))
    return torch.cat([ones[:size, None], factor.T], dim=1), torch.cat([(share / c).reshape(1), ones[:rank]])


def _root(covariance: Tensor) -> Tensor:
    """L with L L' = the covariance, and as many columns as its rank: that of n images has n - 1 at most."""
    matrix = covariance.cpu().numpy()
    factor, pivots, rank, _ = lapack.dpstrf(matrix, lower=1, tol=NEGLIGIBLE * matrix.diagonal().max())
    result = torch.empty(len(matrix), rank, dtype=torch.float64)
    result[torch.from_numpy(pivots).long() - 1] = torch.from_numpy(factor[:, :rank]).tril()
    return result.to(covariance.device)


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """matrix^-1 right for a symmetric positive definite matrix."""
    factor: Any = torch.linalg.cholesky(matrix)
    return torch.cholesky_solve(right, factor)
