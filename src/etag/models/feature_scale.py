"""Standardizing features."""

import torch
from torch import Tensor

from etag.models.modules import StoredTensors
from etag.models.structure import Rebuildable

LEAST_DEVIATION = 0.1  # smallest deviation that is used, as a share of the mean deviation


class FeatureScale(StoredTensors, Rebuildable):
    """Shifts and scales features to zero mean and unit variance over the images it was fitted to."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features
        self.store(mean=torch.zeros(features), deviation=torch.ones(features))

    def fit(self, features: Tensor) -> None:
        """Take mean and deviation from features; one that hardly varies is not scaled up, as it may vary later."""
        deviation = features.std(0, correction=0)
        least = LEAST_DEVIATION * deviation.mean()
        self.store(mean=features.mean(0), deviation=deviation.clamp(min=least) if least > 0 else deviation + 1)

    def forward(self, features: Tensor) -> Tensor:
        """The scaled features."""
        return (features - self.mean) / self.deviation
