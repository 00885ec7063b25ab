"""Prediction rules: how a feature becomes scores over the classes seen.

Scores are logarithms of probabilities up to a constant per row; the highest one is the prediction.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from etag.core.random import Stream
from etag.models.class_vaes import ClassVAEs
from etag.models.feature_scale import FeatureScale
from etag.models.heads import LinearHead
from etag.models.modules import Modules, StoredTensors
from etag.models.replay_network import HiddenLayers
from etag.models.structure import Rebuildable


class PredictionRule(Rebuildable, ABC):
    """Maps features, one row per image, to scores, one column per class."""

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """Scores of the classes, one row per image."""

    def transformed(self, features: Tensor) -> Tensor:
        """What class statistics are taken of; the features themselves, unless a rule changes them first."""
        return features


class HeadRule(PredictionRule):
    """The logits of a head: of its first `classes` classes, each of which has `outputs_per_class` outputs. The first
    output of a class is its score."""

    def __init__(self, head: LinearHead, classes: int, outputs_per_class: int = 1) -> None:
        super().__init__()
        self.head, self.classes, self.outputs_per_class = head, classes, outputs_per_class

    def forward(self, features: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(features)
        return logits[:, : self.classes * self.outputs_per_class : self.outputs_per_class]


class PerTaskRule(PredictionRule):
    """Log-probabilities within each task's own head: the highest probability over all heads wins."""

    def __init__(self, head: LinearHead, task_sizes: Sequence[int]) -> None:
        super().__init__()
        self.head, self.task_sizes = head, list(task_sizes)

    def forward(self, features: Tensor) -> Tensor:
        """Log-probabilities of each head, side by side."""
        logits: Tensor = self.head(features)
        heads = torch.split(logits[:, : sum(self.task_sizes)], self.task_sizes, dim=1)
        return torch.cat([head.log_softmax(1) for head in heads], dim=1)


class ClassScores(StoredTensors, Rebuildable):
    """IL2M's second memory: mean scores of classes, and mean confidences of tasks. For each class its mean score on its
    own images when it was learned (`initial`) and now (`current`); for each task how confident the solver was on its
    images when they were new (`confidence`)."""

    initial: Tensor
    current: Tensor
    confidence: Tensor  # per task
    task: Tensor  # of each class

    def __init__(self) -> None:
        super().__init__()
        nothing = torch.empty(0)
        self.store(initial=nothing, current=nothing, confidence=nothing, task=nothing.long())

    def add_task(self, initial: Tensor, current_old: Tensor, confidence: Tensor) -> None:
        """Add the mean scores of new classes, replace the current ones of old classes, add the task's confidence."""
        index = self.confidence.new_full((len(initial),), len(self.confidence), dtype=torch.long)
        self.store(
            initial=torch.cat([self.initial, initial]),
            current=torch.cat([current_old, initial]),
            confidence=torch.cat([self.confidence, confidence.reshape(1)]),
            task=torch.cat([self.task, index]),
        )

    @property
    def is_new(self) -> Tensor:
        """Whether each class belongs to the latest task."""
        return self.task == len(self.confidence) - 1

    @property
    def factors(self) -> Tensor:
        """The factor on each class's score: 1 for new classes, and where a mean is not positive."""
        ratio = (self.initial / self.current) * (self.confidence[-1] / self.confidence[self.task])
        valid = (self.initial > 0) & (self.current > 0) & (self.confidence[self.task] > 0) & (self.confidence[-1] > 0)
        return torch.where(valid & ~self.is_new, ratio, torch.ones_like(ratio))


class RectifiedRule(PredictionRule):
    """IL2M (Belouadah and Popescu, 2019): where a new class would win, old classes get their earlier scores back."""

    def __init__(self, head: LinearHead, scores: ClassScores) -> None:
        super().__init__()
        self.head, self.scores = head, scores

    def forward(self, features: Tensor) -> Tensor:
        """Logits, rectified where the highest is that of a new class."""
        logits: Tensor = self.head(features)[:, : len(self.scores.initial)]
        new_wins = self.scores.is_new[logits.argmax(1)]
        return torch.where(new_wins[:, None], logits * self.scores.factors, logits)


class LikelihoodRule(PredictionRule):
    """The log-likelihood of the scaled feature under the VAE of each class; all classes have the same prior."""

    def __init__(self, scale: FeatureScale, classes: Modules[ClassVAEs], samples: int | Literal["mean"]) -> None:
        super().__init__()
        self.scale, self.classes, self.samples = scale, classes, samples

    def forward(self, features: Tensor) -> Tensor:
        """Log-likelihoods."""
        features = self.scale(features)
        latent = next(iter(self.classes)).latent
        noise = torch.zeros(1, latent)
        if self.samples != "mean":  # the same draws at every call: a prediction does not depend on earlier ones
            noise = torch.randn(self.samples, latent, generator=Stream.root(0).torch_generator("samples"))
        noise = noise.to(features)
        return torch.cat([vaes.log_likelihoods(features, noise) for vaes in self.classes], dim=1)


class HiddenLayersRule(PredictionRule):
    """The logits of a head behind hidden layers that take scaled features (BI-R)."""

    def __init__(self, scale: FeatureScale, encoder: HiddenLayers, head: LinearHead) -> None:
        super().__init__()
        self.scale, self.encoder, self.head = scale, encoder, head

    def forward(self, features: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.encoder(self.scale(features)))
        return logits


# -- weights that are computed from class statistics ------------------------------------------------------------------


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

    def transformed(self, features: Tensor) -> Tensor:
        """What the linear scores are computed from, in the precision of the features."""
        return features if self.projection is None else functional.relu(features @ self.directions.to(features))

    def forward(self, features: Tensor) -> Tensor:
        """Linear scores."""
        return functional.linear(self.transformed(features), self.weight, self.bias)


Inverse: TypeAlias = tuple[Tensor, Tensor, Tensor]  # s (size), B (size, rank) and w (rank): diag(s) - B diag(w) B'


class MahalanobisRule(StoredTensors, PredictionRule):
    """Minus half the squared Mahalanobis distance to the mean of each class, after an elementwise power. The inverse
    covariance of each class (or a single one for all) is stored as `Inverse`: a class of n images needs a rank of n at
    most. Lower ranks are filled up with zeros."""

    means: Tensor
    scales: Tensor
    directions: Tensor
    weights: Tensor

    def __init__(self, size: int, power: float = 1.0) -> None:
        super().__init__()
        self.size, self.power, nothing = size, power, torch.empty(0, 0)
        self.store(means=torch.empty(0, size))
        self.store(scales=torch.empty(0, size), directions=torch.empty(0, size, 0), weights=nothing)

    def set(self, means: Tensor, inverses: Sequence[Inverse]) -> None:
        """Store means and inverse covariances."""
        rank = max(len(weights) for _, _, weights in inverses)
        scales, directions, weights = zip(*inverses, strict=True)
        self.store(
            means=means.float(),
            scales=torch.stack([each.float() for each in scales]),
            directions=torch.stack([functional.pad(each.float(), (0, rank - each.shape[1])) for each in directions]),
            weights=torch.stack([functional.pad(each.float(), (0, rank - len(each))) for each in weights]),
        )

    def inverses(self) -> list[Inverse]:
        """The inverse covariances as they are stored."""
        return list(zip(self.scales, self.directions, self.weights, strict=True))

    def transformed(self, features: Tensor) -> Tensor:
        """The features raised to the power, which makes skewed ones more normal (Tukey)."""
        return features if self.power == 1 else features.clamp(min=0).pow(self.power)

    def forward(self, features: Tensor) -> Tensor:
        """Minus half of each squared distance."""
        features = self.transformed(features)
        if len(self.scales) == 1:  # what is quadratic in the features is the same for all classes, and left out
            along = (self.means @ self.directions[0]) * self.weights[0]
            linear = self.means * self.scales[0] - along @ self.directions[0].T
            return features @ linear.T - 0.5 * (linear * self.means).sum(1)
        distances = [
            (features - mean).square() @ scale - ((features - mean) @ directions).square() @ weights
            for mean, (scale, directions, weights) in zip(self.means, self.inverses(), strict=True)
        ]
        return -0.5 * torch.stack(distances, dim=1)
