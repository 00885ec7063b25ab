"""What can be stored of the features of each class in place of a network that generates them: its mean, or more."""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from etag.core.random import Placement, Stream
from etag.core.scenario import Task
from etag.core.work import Batch, Plan
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.drift import Drift, DriftOptions, PassBatches
from etag.methods.parts.generators import FeatureGenerator
from etag.methods.parts.statistics import Transform
from etag.models.modules import StoredTensors
from etag.models.solver import Solver, Teacher


class StoredClasses(StoredTensors):
    """The mean feature of each class, and what a subclass adds. With `drift`, all of it follows the backbone; without
    it, it stays as it was when the class was learned."""

    means: Tensor  # (classes, feature)
    drift: Drift | None
    transform: Transform = staticmethod(torch.Tensor.float)  # of features, before anything of them is stored

    def __init__(self, size: int, drift: DriftOptions | None = None, placement: Placement | None = None) -> None:
        super().__init__()
        self.drift = None if drift is None else Drift(drift, size, placement or Placement())
        self.store(means=torch.empty(0, size))

    @abstractmethod
    def add_task(self, task: Task, features: Tensor, labels: Tensor) -> None:
        """Add the task's classes."""

    def replay(self, batch: Batch, task: Task, rows: int) -> tuple[Tensor, Tensor]:
        """Labels drawn uniformly from the old classes, and one feature for each. `rows` is the number for the global
        batch; the result is this process's share."""
        labels = batch.draws.integers("replay labels", 0, task.num_old, rows)
        return labels, self.replayed(labels, batch, rows)

    @abstractmethod
    def replayed(self, labels: Tensor, batch: Batch, rows: int) -> Tensor:
        """One feature of each of these classes; `labels` are this process's share of `rows`."""

    def follow(self, task: Task, teacher: Teacher | None, solver: Solver, batches: PassBatches, stream: Stream) -> Plan:
        """After the solver has learned a task, and before the task's classes are added: move what is stored of old
        classes to where the new backbone puts them. Nothing is done without `drift`."""
        if self.drift is None:
            return
        yield from self.drift.learn(task, teacher, solver, batches, stream, self.transform)
        self.move_by(self.drift)
        self.drift.reset()

    def move_by(self, drift: Drift) -> None:
        """Apply a learned map to what is stored."""
        self.store(means=drift(self.means))


class StoredClassesGenerator(FeatureGenerator):
    """Replays features from what is stored of their classes; nothing is trained."""

    augmented_passes = 0
    network: StoredClasses

    def __init__(self, stored: StoredClasses) -> None:
        self.network = stored

    def add_classes(self, classes: int, stream: Stream) -> None:
        """Do nothing: classes are added when they are learned."""

    def follow(self, task: Task, teacher: Teacher | None, solver: Solver, batches: PassBatches, stream: Stream) -> Plan:
        """Move what is stored of old classes, with the option `drift`."""
        return self.network.follow(task, teacher, solver, batches, stream)

    def learn(
        self,
        task: Task,
        features: CachedFeatures,
        weights: dict[str, float],  # noqa: ARG002
        head: nn.Module,  # noqa: ARG002
        stream: Stream,  # noqa: ARG002
    ) -> Plan:
        """Add the task's classes."""
        self.network.add_task(task, features.all_features, features.all_labels)
        yield from ()

    def replayed(self, labels: Tensor, batch: Batch, rows: int) -> Tensor:
        """Features of old classes."""
        return self.network.replayed(labels, batch, rows)
