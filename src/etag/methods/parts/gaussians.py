"""A normal distribution of the features of each class, from which features of old classes are drawn."""

from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from etag.core.options import Options
from etag.core.random import Placement, Stream
from etag.core.scenario import Task
from etag.core.work import Batch
from etag.methods.parts.drift import Drift, DriftOptions
from etag.methods.parts.fidelity import FidelityOptions
from etag.methods.parts.generators import NormalSampler
from etag.methods.parts.statistics import inverse_of_correlations
from etag.methods.parts.stored_classes import StoredClasses, StoredClassesGenerator
from etag.models.prediction import MahalanobisRule

JITTER = 1e-5  # added to every variance, as in EFC's release: with few images a covariance may be singular


class ClassGaussians(StoredClasses):
    """The mean of each class, and a factor F of its covariance F F'. A factor is as large as a covariance, and a
    feature is drawn as mean + F z, where z is standard normal. With a `power` below 1 all of that is of features raised
    to this power; they must not be negative."""

    factors: Tensor  # (classes, feature, feature)

    def __init__(
        self, size: int, drift: DriftOptions | None = None, placement: Placement | None = None, power: float = 1.0
    ) -> None:
        super().__init__(size, drift, placement)
        self._power = power
        self.store(factors=torch.empty(0, size, size))

    def transform(self, features: Tensor) -> Tensor:
        """Features raised to the power."""
        return features.float() if self._power == 1 else features.float().clamp(min=0).pow(self._power)

    def add_task(self, task: Task, features: Tensor, labels: Tensor) -> None:
        """Add the task's classes."""
        means, factors, transformed = [], [], self.transform(features)
        for label in range(task.num_old, task.num_seen):
            rows = transformed[labels == label].double()
            centered = rows - rows.mean(0)
            covariance = centered.T @ centered / max(1, len(rows) - 1)
            covariance.diagonal().add_(JITTER)
            means.append(rows.mean(0).float())
            factors.append(torch.linalg.cholesky(covariance).float())
        self.store(
            means=torch.cat([self.means, torch.stack(means)]), factors=torch.cat([self.factors, torch.stack(factors)])
        )

    def move_by(self, drift: Drift) -> None:
        """Apply a learned linear map to means and covariances."""
        super().move_by(drift)
        self.store(factors=drift.map_factors(self.factors))

    def move(self, steps: Tensor) -> None:
        """Add one step to the mean of each class; covariances stay."""
        self.store(means=self.means + steps)

    def remove_class(self, label: int) -> None:
        """Remove one class."""
        rest = [other for other in range(len(self.means)) if other != label]
        self.store(means=self.means[rest], factors=self.factors[rest])

    def sample(self, labels: Tensor, noise: Tensor) -> Tensor:
        """One feature of each of these classes, from one row of standard normal noise each."""
        features = self.means[labels]
        for label in sorted(set(labels.tolist())):
            rows = labels == label
            features[rows] += noise[rows] @ self.factors[label].T
        return features if self._power == 1 else features.clamp(min=0).pow(1 / self._power)

    def rule(self) -> MahalanobisRule:
        """FeCAM's distances to these distributions, as they are now."""
        rule = MahalanobisRule(self.means.shape[1], self._power)
        if len(self.means):
            factors = self.factors.double()
            rule.set(self.means, [inverse_of_correlations(factor @ factor.T) for factor in factors])
        return rule

    def replayed(self, labels: Tensor, batch: Batch, rows: int) -> Tensor:
        """One feature drawn for each of these classes."""
        return self.sample(labels, batch.draws.normal("replay noise", rows, self.means.shape[1]))


class GaussianOptions(Options):
    """A normal distribution of the features of each class in place of a generator."""

    kind: Literal["gaussians"] = Field("gaussians", description="a mean and a covariance per class")
    power: float = Field(
        0.5,
        gt=0,
        le=1,
        description="the distributions are of features raised to this power, which makes skewed ones more normal "
        "(Tukey); 1: of the features themselves, as always where a backbone's may be negative",
    )
    drift: DriftOptions | None = Field(
        None, description="learned drift compensation of means and covariances (LDC); null: they stay as they were"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_linear(self.drift)
        return self

    def create(
        self, size: int, _: Stream, placement: Placement, __: FidelityOptions, signed: bool = False
    ) -> "GaussianGenerator":
        """Distributions of features of this size, still of no class."""
        return GaussianGenerator(ClassGaussians(size, self.drift, placement, 1.0 if signed else self.power))


class GaussianGenerator(StoredClassesGenerator):
    """Draws features from the distribution of their class."""

    role = "gaussians"
    network: ClassGaussians

    def remove_class(self, label: int) -> None:
        """Remove the distribution of a class."""
        self.network.remove_class(label)

    def sample(self, labels: Tensor, normal: NormalSampler) -> Tensor:
        """Features drawn from the current distributions."""
        return self.network.sample(labels, normal("gaussians", self.network.means.shape[1]))


def check_linear(drift: DriftOptions | None) -> None:
    """Raise an error for a drift that covariances cannot follow."""
    if drift is not None and drift.map == "mlp":
        raise ValueError("drift.map=mlp cannot move covariances: choose linear or least_squares")
