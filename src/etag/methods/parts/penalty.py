"""Ridge regression from sums, and its penalty by leave-one-out errors in closed form."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from etag.core.work import Batch
from etag.methods.parts.statistics import ClassStatistics, Transform, solve
from etag.models.backbone import Backbone
from etag.models.modules import StoredTensors

PENALTIES = tuple(10 ** (power / 2) for power in range(-4, 15))  # 0.01 .. 1e7, two per decade


class PenaltyErrors(StoredTensors):
    """The leave-one-out error of each of `PENALTIES`, summed over the images of all tasks so far."""

    errors: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.store(errors=torch.zeros(len(PENALTIES), dtype=torch.float64))

    def add(self, errors: Tensor) -> None:
        """Add the errors of a task's images."""
        self.store(errors=self.errors + errors.to(self.errors))

    @property
    def best(self) -> float | None:
        """The penalty with the smallest error; None if no image has counted yet."""
        return PENALTIES[int(self.errors.argmin())] if self.errors.any() else None


@dataclass(frozen=True)
class RidgeProblem:
    """Minimize |Y - X W - 1 b'|^2 + penalty |W|^2 over W and b, where X are features and Y one-hot labels; given by
    sums over the images."""

    images: Tensor  # their number
    mean: Tensor  # of the features
    class_shares: Tensor  # the mean of the one-hot labels
    gram: Tensor  # X' X of centered features
    targets: Tensor  # X' Y of centered features: (features, classes)

    def solution(self, penalty: float) -> tuple[Tensor, Tensor]:
        """The weights, one row per class, and the bias."""
        weight = solve(self.gram + penalty * torch.eye(len(self.gram)).to(self.gram), self.targets).T
        return weight, self.class_shares - weight @ self.mean

    @property
    def spread(self) -> float:
        """The mean squared distance of the features to their mean: a penalty for classes of one image each, where no
        leave-one-out error tells a better one. At least the smallest of `PENALTIES`: features may be equal."""
        return max(float(self.gram.trace() / self.images), PENALTIES[0])

    @cached_property
    def eigen(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues and eigenvectors of the Gram matrix: with them every penalty is cheap."""
        values, vectors = torch.linalg.eigh(self.gram)
        return values.clamp(min=0), vectors

    def left_out_errors(self, features: Tensor, labels: Tensor, penalties: Sequence[float]) -> Iterator[Tensor]:
        """For each penalty, y - g for each image (rows) and class (columns), where y is 1 for the image's class and 0
        for others, and g is predicted as if the image had not been among those of the problem, where it must be. In
        closed form (y - f) / (1 - h), where f is the ordinary prediction and h the leverage of the image."""
        values, vectors = self.eigen
        one_hot = nn.functional.one_hot(labels, len(self.class_shares)).to(features) - self.class_shares
        rotated, targets = (features - self.mean) @ vectors, vectors.T @ self.targets
        for penalty in penalties:
            scaled = rotated / (values + penalty)
            leverage = 1 / self.images + (scaled * rotated).sum(1)
            yield (one_hot - scaled @ targets) / (1 - leverage).clamp(min=1e-9)[:, None]

    def squared_left_out_errors(self, features: Tensor, labels: Tensor) -> Tensor:
        """The sum of all squares of `left_out_errors` for each of `PENALTIES`, as `PenaltyErrors.add` takes it. Without
        the only image of a class nothing is known of that class, so the image does not count."""
        others = (self.class_shares * self.images)[labels] > 1.5  # a count; rounding errors do not matter
        errors = self.left_out_errors(features[others], labels[others], PENALTIES)
        return torch.stack([error.square().sum() for error in errors])


def ridge_problem(statistics: ClassStatistics) -> RidgeProblem:
    """The problem of all images so far."""
    count, total = statistics.count, statistics.total
    images, mean = count.sum(), total.sum(0) / count.sum()
    gram = statistics.moment_of_all - images * torch.outer(mean, mean)
    return RidgeProblem(images, mean, count / images, gram, total.T - torch.outer(mean, count))


class LeaveOneOut(nn.Module):
    """For each penalty, the sum over a batch of the squared errors of leave-one-out predictions."""

    def __init__(self, backbone: Backbone, problem: RidgeProblem, transform: Transform) -> None:
        super().__init__()
        self.backbone, self._problem, self._transform = backbone, problem, transform

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """`errors`: one sum per penalty."""
        features = self._transform(self.backbone(batch.inputs).double())
        return {"errors": self._problem.squared_left_out_errors(features, batch.labels)}
