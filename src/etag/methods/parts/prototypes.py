"""Prototypes: the mean feature of each class, replayed as it is or with noise around it."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from etag.core.options import Options
from etag.core.random import Placement, Stream
from etag.core.scenario import Task
from etag.core.work import Batch
from etag.methods.parts.drift import DriftOptions
from etag.methods.parts.fidelity import FidelityOptions
from etag.methods.parts.stored_classes import StoredClasses, StoredClassesGenerator


class Prototypes(StoredClasses):
    """The mean feature of each class, and one radius for all classes (PASS)."""

    radius: Tensor

    def __init__(self, size: int, drift: DriftOptions | None = None, placement: Placement | None = None) -> None:
        super().__init__(size, drift, placement)
        self.store(radius=torch.zeros(()))

    def add_task(self, task: Task, features: Tensor, labels: Tensor) -> None:
        """Add the task's classes. The radius is the square root of the mean variance of the base classes."""
        classes = [features[labels == label].float() for label in range(task.num_old, task.num_seen)]
        means = torch.stack([rows.mean(0) for rows in classes])
        if task.index == 0:
            self.store(radius=torch.stack([rows.var(0, correction=0) for rows in classes]).mean().sqrt())
        self.store(means=torch.cat([self.means, means]))

    def replayed(self, labels: Tensor, batch: Batch, rows: int) -> Tensor:  # noqa: ARG002
        """The means of these classes."""
        return self.means[labels]

    def noisy_replay(self, batch: Batch, task: Task, rows: int) -> tuple[Tensor, Tensor]:
        """Labels drawn uniformly from the old classes, and their means with normal noise of the radius."""
        labels, means = self.replay(batch, task, rows)
        return labels, means + batch.draws.normal("replay noise", rows, means.shape[1]) * self.radius


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
        return PrototypeGenerator(Prototypes(size, self.drift, placement))


class PrototypeGenerator(StoredClassesGenerator):
    """Replays stored class means."""

    role = "prototypes"
