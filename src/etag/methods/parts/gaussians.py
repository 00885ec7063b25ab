"""A normal distribution of the features of each class, from which features of old classes are drawn."""

import torch
from torch import Tensor

from etag.core.random import Placement, Stream
from etag.core.scenario import Task
from etag.core.work import Batch, Plan
from etag.methods.parts.drift import Drift, DriftOptions, PassBatches
from etag.models.modules import StoredTensors
from etag.models.solver import Solver, Teacher

JITTER = 1e-5  # added to every variance, as in EFC's release: with few images a covariance is singular


class ClassGaussians(StoredTensors):
    """The mean of each class, and a factor F of its covariance F F'. A factor is as large as a covariance, and a
    feature is drawn as mean + F z, where z is standard normal."""

    means: Tensor  # (classes, feature)
    factors: Tensor  # (classes, feature, feature)
    drift: Drift | None

    def __init__(self, size: int, drift: DriftOptions | None = None, placement: Placement | None = None) -> None:
        super().__init__()
        self.drift = None if drift is None else Drift(drift, size, placement or Placement())
        self.store(means=torch.empty(0, size), factors=torch.empty(0, size, size))

    def add_task(self, task: Task, features: Tensor, labels: Tensor) -> None:
        """Add the task's classes."""
        means, factors = [], []
        for label in range(task.num_old, task.num_seen):
            rows = features[labels == label].double()
            centered = rows - rows.mean(0)
            covariance = centered.T @ centered / max(1, len(rows) - 1)
            lower: Tensor = torch.linalg.cholesky(covariance + JITTER * torch.eye(len(covariance)).to(covariance))
            means.append(rows.mean(0).float())
            factors.append(lower.float())
        self.store(
            means=torch.cat([self.means, torch.stack(means)]), factors=torch.cat([self.factors, torch.stack(factors)])
        )

    def follow(self, task: Task, teacher: Teacher | None, solver: Solver, batches: PassBatches, stream: Stream) -> Plan:
        """After the solver has learned a task, and before the task's classes are added: move means and covariances of
        old classes to where the new backbone puts them. Nothing is done without `drift`."""
        if self.drift is None:
            return
        yield from self.drift.learn(task, teacher, solver, batches, stream)
        self.store(means=self.drift(self.means), factors=self.drift.map_factors(self.factors))
        self.drift.reset()

    def move(self, steps: Tensor) -> None:
        """Add one step to the mean of each class; covariances stay."""
        self.store(means=self.means + steps)

    def sample(self, labels: Tensor, noise: Tensor) -> Tensor:
        """One feature of each of these classes, from one row of standard normal noise each."""
        features = self.means[labels]
        for label in sorted(set(labels.tolist())):
            rows = labels == label
            features[rows] += noise[rows] @ self.factors[label].T
        return features

    def replay(self, batch: Batch, task: Task, rows: int) -> tuple[Tensor, Tensor]:
        """Labels drawn uniformly from the old classes, and one feature for each. `rows` is the number for the global
        batch; the result is this process's share."""
        labels = batch.draws.integers("replay labels", 0, task.num_old, rows)
        return labels, self.sample(labels, batch.draws.normal("replay noise", rows, self.means.shape[1]))
