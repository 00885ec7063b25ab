"""A backbone that is trained once, or never, and then only looked through."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from etag.core.errors import EtagError
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Plan
from etag.methods.base import Method, MethodOptions
from etag.models.modules import StoredTensors

LEAST = 0.1  # deviation of a feature that is believed, in shares of the mean one


class FrozenFeatureOptions(MethodOptions):
    """Where the features come from: that decides much of what such a method reaches."""

    head: Literal["growing"] = Field("growing", description="of the network that learns from features")
    features: Literal["base", "weights"] = Field(
        "base",
        description="the frozen backbone: trained on the base task, or as it is in the file `model.weights`",
    )
    standardize: bool = Field(
        True, description="shift and scale every feature by its mean and deviation over the base task's images"
    )
    feature_passes: PositiveInt = Field(
        10, description="augmented passes over the task whose features are cached; epochs use them in turn"
    )


class FeatureScale(StoredTensors):
    """Makes features of zero mean and unit variance, as those of the base task are."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.keep(mean=torch.zeros(features), deviation=torch.ones(features))

    def learn(self, features: Tensor) -> None:
        """A feature that hardly ever moves is not blown up: it may move in a later task."""
        deviation = features.std(0, correction=0)
        least = LEAST * deviation.mean()
        self.keep(mean=features.mean(0), deviation=deviation.clamp(min=least) if least > 0 else deviation + 1)

    def forward(self, features: Tensor) -> Tensor:
        """The scaled features."""
        return (features - self.mean) / self.deviation


class FrozenFeatureMethod(Method):
    """A method that learns from the features of a frozen backbone. The solver's head serves the base task only."""

    answering = frozenset({"solver", "scale", "generator"})

    def build(self, stream: Stream) -> None:
        """The scale too, still that of nothing."""
        super().build(stream)
        self.scale = FeatureScale(self.solver.backbone.feature_size)

    def check(self, task_sizes: Sequence[int]) -> None:
        """There must be features to begin with."""
        super().check(task_sizes)
        if self.options.features == "weights" and self.context.model.weights is None:
            raise EtagError(
                "method.features=weights takes a backbone from a file: name it with model.weights, or choose "
                "method.features=base."
            )
        if self.options.features == "weights" and self.embedding is not None:
            raise EtagError("method.features=weights trains no backbone: embedding distillation has no place there.")

    def head_room(self, classes: int) -> int:
        """For the base task's classes, if it is to train the backbone."""
        return self.disk_full_error(classes, "base") if self.options.features == "base" else 0

    def phases(self, task: Task) -> Plan:
        """At the base task the backbone; then features, and what learns from them."""
        o = self.options
        if task.index == 0 and o.features == "base":
            yield self.solver_phase(task, [self.classification(task)])
        found = yield self.features_pass("features", task.train, o.feature_passes)
        if task.index == 0 and o.standardize:
            self.scale.learn(found["features"])
        yield from self.learn(task, self.scale(found["features"]), found["labels"])

    @abstractmethod
    def learn(self, task: Task, features: Tensor, labels: Tensor) -> Plan:
        """From scaled features: `feature_passes` passes over the task's images, one behind the other."""

    def parts(self) -> dict[str, nn.Module]:
        """The scale too."""
        return super().parts() | {"scale": self.scale}

    def remarks(self) -> dict[str, str]:
        """Where the features come from."""
        if self.options.features == "weights":
            return {"features": f"a frozen backbone from {self.context.model.weights}"}
        return {"features": "a frozen backbone, trained on the base task"}
