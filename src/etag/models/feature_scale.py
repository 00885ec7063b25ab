"""Standardizing features."""

import torch
from torch import Tensor, nn
from torch.nn import functional

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

    def inverse(self, scaled: Tensor) -> Tensor:
        """The features that `forward` scales to `scaled`."""
        return scaled * self.deviation + self.mean


class FeatureNetwork(nn.Module):
    """Base of networks that generate features. Features are not negative, unless they are `signed`. With
    `standardize` the network itself works on standardized features; `scale` must be fitted before it is trained."""

    def __init__(self, features: int, standardize: bool = False, signed: bool = False) -> None:
        super().__init__()
        self.scale = FeatureScale(features) if standardize else None
        self._signed = signed

    def standardized(self, features: Tensor) -> Tensor:
        """Features as the network sees them."""
        return features if self.scale is None else self.scale(features)

    def restored(self, output: Tensor) -> Tensor:
        """The features that an output of the network stands for, on their original scale."""
        features = output if self.scale is None else self.scale.inverse(output)
        return features if self._signed else functional.relu(features)
