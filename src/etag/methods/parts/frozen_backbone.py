"""Features of a backbone that is trained on the base task, or never, and then frozen."""

from dataclasses import replace
from typing import Literal

from pydantic import Field, PositiveInt

from etag.core.errors import EtagError
from etag.core.options import Options
from etag.core.scenario import Task
from etag.methods.parts.cached_features import CachedFeatures
from etag.models.feature_scale import FeatureScale


class FrozenBackboneOptions(Options):
    """Where the frozen features come from, which decides much of what such a method reaches."""

    source: Literal["base", "weights"] = Field(
        "base", description="the backbone is trained on the base task, or loaded from `model.weights` and not trained"
    )
    standardize: bool = Field(
        True, description="shift and scale each feature to zero mean and unit variance over the base task's images"
    )
    passes: PositiveInt = Field(
        10, description="augmented passes over the task's images whose features are cached; epochs use them in turn"
    )


class FrozenBackbone:
    """The scale of frozen features; a method holds one and stores the scale."""

    def __init__(self, options: FrozenBackboneOptions, features: int) -> None:
        self.options, self.scale = options, FeatureScale(features)

    def trains(self, task: Task) -> bool:
        """Whether the backbone is trained in this task."""
        return task.index == 0 and self.options.source == "base"

    def head_outputs(self, classes: int, first: bool) -> int:
        """Classes that the solver's head gains: those of the base task, if it trains the backbone."""
        return classes if first and self.options.source == "base" else 0

    def scaled(self, task: Task, cached: CachedFeatures) -> CachedFeatures:
        """The cached features, standardized; the base task decides mean and deviation."""
        if task.index == 0 and self.options.standardize:
            self.scale.fit(cached.all_features)
        return replace(cached, passes=self.scale(cached.passes))

    def check(self, weights: str | None, embedding: bool) -> None:
        """Refuse settings under which there would be no features."""
        if self.options.source == "base":
            return
        if weights is None:
            raise EtagError(
                "method.features.source=weights needs a backbone from a file: set model.weights, or choose "
                "method.features.source=base."
            )
        if embedding:
            raise EtagError(
                "method.features.source=weights trains no backbone, so embedding distillation has nothing to do: "
                "leave method.embedding out."
            )

    def remark(self, weights: str | None) -> str:
        """Where the features come from, in a few words for people."""
        if self.options.source == "weights":
            return f"a frozen backbone from {weights}"
        return "a frozen backbone, trained on the base task"
