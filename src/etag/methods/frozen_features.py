"""The common part of BI-R and GC, which train networks on cached, standardized features of a frozen backbone."""

from abc import abstractmethod
from dataclasses import replace
from typing import TypeVar

from pydantic import Field, PositiveInt

from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Plan
from etag.methods.frozen_backbone import FrozenBackboneMethod, FrozenBackboneOptions, FrozenFeatureOptions
from etag.methods.parts.cached_features import CachedFeatures
from etag.models.feature_scale import FeatureScale


class AugmentedFeatureOptions(FrozenFeatureOptions):
    """Frozen features of augmented images."""

    passes: PositiveInt = Field(
        10, description="augmented passes over the images whose features are cached; each epoch uses one, in turn"
    )


class FrozenFeatureMethodOptions(FrozenBackboneOptions):
    """Options of methods on cached features."""

    features: AugmentedFeatureOptions = Field(AugmentedFeatureOptions(), description="the frozen features")


OptionsT = TypeVar("OptionsT", bound=FrozenFeatureMethodOptions, covariant=True)


class FrozenFeatureMethod(FrozenBackboneMethod[OptionsT]):
    """Learns every task from cached, standardized features."""

    def build(self, stream: Stream) -> None:
        """Store the scale of the features beside the solver."""
        super().build(stream)
        self.parts["scale"] = self.scale = FeatureScale(self.solver.backbone.output_size)

    def sees_features(self, index: int) -> bool:  # noqa: ARG002
        """Never: it augments the images."""
        return False

    def learn_task(self, task: Task) -> Plan:
        """Compute features of augmented images, and learn from them."""
        passes = self.options.features.passes
        cached = CachedFeatures.from_pass((yield self.features_pass("features", task.train, passes)), len(task.train))
        if task.index == 0:
            self.scale.fit(cached.all_features)
        yield from self.learn_features(task, replace(cached, features=self.scale(cached.features)))

    @abstractmethod
    def learn_features(self, task: Task, features: CachedFeatures) -> Plan:
        """Learn a task from standardized features of its images."""
