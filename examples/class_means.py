"""Nearest class mean: the backbone is trained on the base task; every class is stored as its mean feature.

etag run --plugin examples/class_means.py --method means --set train.epochs=5
"""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Batch, DataPass, Plan
from etag.methods.base import Method, MethodInfo, MethodOptions
from etag.methods.registry import method
from etag.models.backbone import Backbone
from etag.models.modules import StoredTensors
from etag.models.prediction import PredictionRule
from etag.models.structure import Rebuildable


class ClassMeans(StoredTensors, Rebuildable):
    """One mean feature per class. `Rebuildable`, because it is part of the saved classifier."""

    means: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features
        self.store(means=torch.empty(0, features))

    def grow(self, classes: int) -> None:
        """Add rows for new classes."""
        self.store(means=torch.cat([self.means, self.means.new_zeros(classes, self.features)]))


class NearestMean(PredictionRule):
    """The nearer the mean of a class, the higher its score."""

    def __init__(self, means: ClassMeans, cosine: bool) -> None:
        super().__init__()
        self.means, self.cosine = means, cosine

    def forward(self, features: Tensor) -> Tensor:
        """Minus half the squared distance: the log-likelihood of a Gaussian around each mean."""
        means = self.means.means
        if self.cosine:
            features, means = functional.normalize(features), functional.normalize(means)
        return -0.5 * torch.cdist(features, means).square()


class FeatureSums(nn.Module):
    """The module of a data pass: sums of features and numbers of images per class."""

    def __init__(self, backbone: Backbone, classes: int) -> None:
        super().__init__()
        self.backbone, self.classes = backbone, classes

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """`sums` (classes, feature) and `counts` (classes, 1) over the images of a batch."""
        features: Tensor = self.backbone(batch.inputs)
        of_class = functional.one_hot(batch.labels, self.classes).to(features)
        return {"sums": of_class.T @ features, "counts": of_class.sum(0)[:, None]}


class MeansOptions(MethodOptions):
    """Options of nearest class means."""

    cosine: bool = Field(False, description="compare directions of features instead of the features themselves")


INFO = MethodInfo(
    title="Means",
    summary="the class whose mean feature is nearest",
    source="an example",
    stores="backbone, head of the base classes; one mean feature per class",
    head="none: distances to class means",
)


@method("means", INFO)
class NearestClassMean(Method[MeansOptions]):
    """Trains the backbone at the base task; after that a task is one pass over its images."""

    Options = MeansOptions

    def build(self, stream: Stream) -> None:
        """Store the means beside the solver, under one of the roles in `etag.methods.base.ROLES`."""
        super().build(stream)
        self.parts["prototypes"] = self.means = ClassMeans(self.solver.backbone.feature_size)

    def add_classes(self, classes: int) -> None:
        """Called when a task begins, and when a saved model is built again."""
        super().add_classes(classes)
        self.means.grow(classes)

    def new_outputs(self, classes: int) -> int:
        """The linear head serves the base task only."""
        return classes if len(self.task_sizes) == 1 else 0

    def phases(self, task: Task) -> Plan:
        """Train the backbone if this is the base task, then measure the means of the new classes."""
        if task.index == 0:
            yield self.solver_phase(task, [self.cross_entropy(task)])
        batches = self.pass_batches("means", task.train)
        module = FeatureSums(self.solver.backbone, task.num_seen)
        found: dict[str, Any] = yield DataPass("means", module, batches, reduce="sum")
        self.means.means[task.num_old :] = (found["sums"] / found["counts"].clamp(min=1))[task.num_old :]

    def prediction_rule(self) -> PredictionRule:
        """How the saved classifier predicts."""
        return NearestMean(self.means, self.options.cosine)
