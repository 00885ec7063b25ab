"""Prototypes: the mean feature of each class, replayed as it is or with noise around it."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from etag.core.options import Options
from etag.core.random import Placement, Stream
from etag.core.scenario import Task
from etag.core.work import Batch, Plan
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.drift import Drift, DriftOptions, PassBatches
from etag.methods.parts.fidelity import FidelityOptions
from etag.methods.parts.generators import FeatureGenerator
from etag.models.modules import StoredTensors
from etag.models.solver import Solver, Teacher


class Prototypes(StoredTensors):
    """The mean feature of each class, and one radius for all classes (PASS). With `drift`, the means follow the
    backbone; without it, they stay as they were when their class was learned."""

    means: Tensor
    radius: Tensor
    drift: Drift | None

    def __init__(self, features: int, drift: DriftOptions | None = None, placement: Placement | None = None) -> None:
        super().__init__()
        self.drift = None if drift is None else Drift(drift, features, placement or Placement())
        self.store(means=torch.empty(0, features), radius=torch.zeros(()))

    def follow(self, task: Task, teacher: Teacher | None, solver: Solver, batches: PassBatches, stream: Stream) -> Plan:
        """After the solver has learned a task, and before the task's classes are added: move the means of old classes
        to where the new backbone puts them. Nothing is done without `drift`."""
        if self.drift is None:
            return
        yield from self.drift.learn(task, teacher, solver, batches, stream)
        self.store(means=self.drift(self.means))
        self.drift.reset()

    def add_task(self, task: Task, features: Tensor, labels: Tensor) -> None:
        """Add the task's classes. The radius is the square root of the mean variance of the base classes."""
        classes = [features[labels == label].float() for label in range(task.num_old, task.num_seen)]
        means = torch.stack([rows.mean(0) for rows in classes])
        if task.index == 0:
            self.store(radius=torch.stack([rows.var(0, correction=0) for rows in classes]).mean().sqrt())
        self.store(means=torch.cat([self.means, means]))

    def replay(self, batch: Batch, task: Task, rows: int, noise: bool = False) -> tuple[Tensor, Tensor]:
        """Labels drawn uniformly from the old classes, and their means; with normal noise of the radius on request."""
        labels = batch.draws.integers("replay labels", 0, task.num_old, rows)
        means = self.means[labels]
        if noise:
            means = means + batch.draws.normal("replay noise", rows, means.shape[1]) * self.radius
        return labels, means


class PrototypeOptions(Options):
    """Class means in place of a generator."""

    kind: Literal["prototypes"] = Field("prototypes", description="class means")
    drift: DriftOptions | None = Field(
        None, description="learned drift compensation of the means (LDC); null: they stay as they were first"
    )

    def create(
        self,
        size: int,
        _: Stream,
        placement: Placement,
        __: FidelityOptions,
        signed: bool = False,  # noqa: ARG002
    ) -> "PrototypeGenerator":
        """Empty prototypes of this size."""
        return PrototypeGenerator(self, size, placement)


class PrototypeGenerator(FeatureGenerator):
    """Replays stored class means."""

    role = "prototypes"
    augmented_passes = 0
    network: Prototypes

    def __init__(self, options: PrototypeOptions, size: int, placement: Placement) -> None:
        self.options = options
        self.network = Prototypes(size, options.drift, placement)

    def add_classes(self, classes: int, stream: Stream) -> None:
        """Do nothing: classes are added when they are learned."""

    def follow(self, task: Task, teacher: Teacher | None, solver: Solver, batches: PassBatches, stream: Stream) -> Plan:
        """Move the means of old classes, with the option `drift`."""
        return self.network.follow(task, teacher, solver, batches, stream)

    def learn(
        self,
        task: Task,
        features: CachedFeatures,
        weights: dict[str, float],  # noqa: ARG002
        head: nn.Module,  # noqa: ARG002
        stream: Stream,  # noqa: ARG002
    ) -> Plan:
        """Add the means of the task's classes; nothing is trained."""
        self.network.add_task(task, features.all_features, features.all_labels)
        yield from ()

    def replay(self, batch: Batch, task: Task, rows: int) -> tuple[Tensor, Tensor]:
        """Labels and prototypes of old classes."""
        return self.network.replay(batch, task, rows)
