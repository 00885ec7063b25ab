"""Prototypes: the mean feature of every class is kept, and replayed as it is or with noise around it."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from etag.core.options import Options
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Batch
from etag.methods.base import Context
from etag.models.modules import StoredTensors

Spread = Literal["none", "class", "radius"]


class PrototypeOptions(Options):
    """Class means in place of a generator."""

    kind: Literal["prototypes"] = "prototypes"
    spread: Literal["none", "class"] = Field(
        "none",
        description="noise around the mean: none, or a normal number times the class's deviation (GFR's mean_replay)",
    )


class Prototypes(StoredTensors):
    """Mean and standard deviation of every class's features, and one radius for all (PASS)."""

    means: Tensor
    deviations: Tensor
    radius: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.keep(means=torch.empty(0, features), deviations=torch.empty(0, features), radius=torch.zeros(()))

    def learn(self, task: Task, found: dict[str, Tensor]) -> None:
        """Add the task's classes. The radius is that of the base classes: the square root of their mean variance."""
        classes = [found["features"][found["labels"] == label] for label in range(task.old, task.seen)]
        means = torch.stack([rows.mean(0) for rows in classes])
        variances = torch.stack([rows.var(0, correction=0) for rows in classes])
        self.keep(
            means=torch.cat([self.means, means]),
            deviations=torch.cat([self.deviations, variances.sqrt()]),
            radius=self.radius if task.index else variances.mean().sqrt(),
        )

    def made(self, batch: Batch, task: Task, rows: int, spread: Spread) -> tuple[Tensor, Tensor]:
        """Labels drawn uniformly from the old classes, and their prototypes with noise of some spread."""
        labels = batch.draws.integers("replay labels", 0, task.old, rows)
        if spread == "none":
            return labels, self.means[labels]
        if spread == "class":  # one draw moves the whole feature
            return labels, self.means[labels] + batch.draws.normal("replay noise", rows, 1) * self.deviations[labels]
        return labels, self.means[labels] + batch.draws.normal(
            "replay noise", rows, self.means.shape[1]
        ) * self.radius


class PrototypeReplay:
    """Stands in for a generator: it replays what it keeps."""

    role = "prototypes"

    def __init__(self, options: PrototypeOptions, _: Context) -> None:
        self.options = options

    def build(self, features: int, _: Stream) -> None:
        """No class is known yet."""
        self.generator = Prototypes(features)

    def begin_task(self, task: Task) -> None:
        """There is no older one to be kept: what is learned is only added to."""

    def grow(self, classes: int, stream: Stream) -> None:
        """Classes come in when they are learned."""

    def learn(self, task: Task, found: dict[str, Tensor]) -> None:
        """Add the task's classes."""
        self.generator.learn(task, found)

    def made(self, batch: Batch, task: Task, rows: int) -> tuple[Tensor, Tensor]:
        """Labels and features of old classes."""
        return self.generator.made(batch, task, rows, self.options.spread)
