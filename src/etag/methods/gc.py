"""GC: the generative classifier (van de Ven et al., 2021). Each class has a small VAE; the likeliest class wins."""

from typing import Literal

from pydantic import Field, PositiveInt

from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import ParameterGroup, Phase, Plan
from etag.data.batches import ClassBatches
from etag.methods.base import MethodInfo
from etag.methods.frozen_features import FrozenFeatureMethod, FrozenFeatureMethodOptions
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.class_vaes import ClassVAEObjective, ClassVAEOptions
from etag.methods.registry import method
from etag.models.answers import AnswerRule, LikelihoodRule
from etag.models.class_vaes import ClassVAEs
from etag.models.initial import build
from etag.models.modules import Modules


class GcOptions(FrozenFeatureMethodOptions):
    """Options of GC."""

    generator: ClassVAEOptions = Field(ClassVAEOptions(), description="the VAE of a class")
    samples: PositiveInt | Literal["mean"] = Field(
        "mean",
        description="latent codes in the importance sampling of the likelihood; mean uses the mean code alone: fast",
    )


@method(
    "gc",
    MethodInfo(
        title="GC",
        summary="a small VAE for each class on frozen features; the class with the highest likelihood wins",
        source="van de Ven et al., 2021",
        stores="backbone, head of the base classes; one VAE per class",
        head="none: likelihoods",
        generator="one VAE per class on features; nothing is replayed",
    ),
)
class GC(FrozenFeatureMethod[GcOptions]):
    """Classes share no parameters, so none is forgotten."""

    Options = GcOptions

    def build(self, stream: Stream) -> None:
        """Store the VAEs too."""
        super().build(stream)
        self.parts["generator"] = self.classes = Modules[ClassVAEs]()

    def add_classes(self, classes: int) -> None:
        """Add a VAE for each new class."""
        super().add_classes(classes)
        o, features = self.options.generator, self.solver.backbone.feature_size
        generator = self.stream("grow").generator("generator")
        self.classes.append(build(lambda: ClassVAEs(classes, features, o.latent, o.hidden), generator))

    def learn_features(self, task: Task, features: CachedFeatures) -> Plan:
        """Train the VAEs of the task's classes, all at once."""
        training, (*_, new) = self.options.generator.train.for_task(task.index), self.classes
        batches = ClassBatches(
            features.all_features,
            features.all_labels - task.old,
            training.batch_size,
            self.stream("generator"),
            self.context.placement,
        )
        yield Phase("generator", ClassVAEObjective(new), batches, (ParameterGroup(list(new.parameters())),), training)

    def answer_rule(self) -> AnswerRule:
        """The highest likelihood."""
        return LikelihoodRule(self.scale, self.classes, self.options.samples)
