"""Prediction rules whose weights are computed from class statistics and not trained."""

import torch
from torch import Tensor
from torch.nn import functional

from etag.models.modules import StoredTensors
from etag.models.prediction import PredictionRule


class CosineRule(StoredTensors, PredictionRule):
    """The cosine of the feature and the mean of each class."""

    means: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.store(means=torch.empty(0, size))

    def forward(self, features: Tensor) -> Tensor:
        """Cosines."""
        return functional.normalize(features) @ functional.normalize(self.means).T


class LinearRule(StoredTensors, PredictionRule):
    """Scores that are linear in the features; with `projection` columns, in max(0, P' f) for a random P."""

    weight: Tensor
    bias: Tensor
    directions: Tensor  # P: (size, projection)

    def __init__(self, size: int, projection: int | None = None) -> None:
        super().__init__()
        self.size, self.projection = size, projection
        inputs = projection or size
        self.store(weight=torch.empty(0, inputs), bias=torch.empty(0), directions=torch.empty(size, projection or 0))

    def projected(self, features: Tensor) -> Tensor:
        """What the linear scores are computed from, in the precision of the features."""
        return features if self.projection is None else functional.relu(features @ self.directions.to(features))

    def forward(self, features: Tensor) -> Tensor:
        """Linear scores."""
        return functional.linear(self.projected(features), self.weight, self.bias)


class MahalanobisRule(StoredTensors, PredictionRule):
    """Minus half the squared Mahalanobis distance to the mean of each class, after an elementwise power. `factors` are
    whitening matrices: of each class (classes, size, size), or a single one for all (1, size, size)."""

    means: Tensor
    factors: Tensor

    def __init__(self, size: int, power: float = 1.0) -> None:
        super().__init__()
        self.size, self.power = size, power
        self.store(means=torch.empty(0, size), factors=torch.empty(0, size, size))

    def transformed(self, features: Tensor) -> Tensor:
        """The features raised to the power, which makes skewed ones more normal (Tukey)."""
        return features if self.power == 1 else features.clamp(min=0).pow(self.power)

    def forward(self, features: Tensor) -> Tensor:
        """Minus half of each squared distance."""
        features = self.transformed(features)
        if len(self.factors) == 1:
            white, means = features @ self.factors[0], self.means @ self.factors[0]
            return white @ means.T - 0.5 * means.square().sum(1)
        distances = [
            ((features - mean) @ factor).square().sum(1) for mean, factor in zip(self.means, self.factors, strict=True)
        ]
        return -0.5 * torch.stack(distances, dim=1)
