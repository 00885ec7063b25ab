"""The common part of methods that learn from the features of a frozen backbone (BI-R, GC).

The backbone is trained on the base task, or loaded and never trained; the solver's head serves the base task only.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal, TypeVar

from pydantic import Field, PositiveInt

from etag.core.errors import EtagError
from etag.core.options import Options
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Plan
from etag.methods.base import Method, MethodOptions
from etag.methods.parts.cached_features import CachedFeatures
from etag.models.feature_scale import FeatureScale


class FrozenFeatureOptions(Options):
    """Where the frozen features come from; the accuracy depends strongly on it."""

    source: Literal["base", "weights"] = Field(
        "base", description="backbone trained at the base task, or loaded (`model.weights`)"
    )
    passes: PositiveInt = Field(
        10, description="augmented passes over the images whose features are cached; each epoch uses one, in turn"
    )


class FrozenFeatureMethodOptions(MethodOptions):
    """Options of methods on frozen features."""

    head_growths: ClassVar[tuple[str, ...]] = ("growing",)
    features: FrozenFeatureOptions = Field(FrozenFeatureOptions(), description="the frozen features")


OptionsT = TypeVar("OptionsT", bound=FrozenFeatureMethodOptions, covariant=True)


class FrozenFeatureMethod(Method[OptionsT]):
    """Trains the backbone at the base task, then learns every task from cached, standardized features."""

    def build(self, stream: Stream) -> None:
        """Store the scale of the features beside the solver."""
        super().build(stream)
        self.parts["scale"] = self.scale = FeatureScale(self.solver.backbone.feature_size)

    def check(self, task_sizes: Sequence[int]) -> None:
        """Check that `source=weights` has a file of weights."""
        super().check(task_sizes)
        if self.options.features.source == "weights" and self.context.model.weights is None:
            raise EtagError(
                "method.features.source=weights needs a backbone from a file: set model.weights, or choose "
                "method.features.source=base."
            )
        if self.options.features.source == "weights" and self.embedding is not None:
            raise EtagError(
                "method.features.source=weights trains no backbone, so embedding distillation has nothing to do: "
                "leave method.embedding out."
            )

    def new_head_classes(self, classes: int) -> int:
        """The head gets the base classes, if it is to train the backbone."""
        return classes if len(self.task_sizes) == 1 and self.options.features.source == "base" else 0

    def phases(self, task: Task) -> Plan:
        """Train the backbone at the base task; then learn from features."""
        o = self.options.features
        if task.index == 0 and o.source == "base":
            yield self.solver_phase(task, [self.cross_entropy(task)])
        cached = CachedFeatures.from_pass((yield self.features_pass("features", task.train, o.passes)), len(task.train))
        if task.index == 0:
            self.scale.fit(cached.all_features)
        yield from self.learn_features(task, replace(cached, features=self.scale(cached.features)))

    @abstractmethod
    def learn_features(self, task: Task, features: CachedFeatures) -> Plan:
        """Learn a task from standardized features of its images."""

    def remarks(self) -> dict[str, str]:
        """Where the features come from."""
        if self.options.features.source == "weights":
            return {"features": f"a frozen backbone from {self.context.model.weights}"}
        return {"features": "a frozen backbone, trained on the base task"}
