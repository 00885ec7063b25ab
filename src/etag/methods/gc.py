"""GC: the generative classifier (van de Ven et al., 2021). Each class has a small VAE; the likeliest class wins."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import ParameterGroup, Phase, Plan
from etag.data.batches import ClassBatches
from etag.methods.base import Method, MethodInfo, MethodOptions
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.class_vaes import ClassVAEObjective, ClassVAEOptions
from etag.methods.parts.frozen_backbone import FrozenBackbone, FrozenBackboneOptions
from etag.methods.registry import method
from etag.models.answers import AnswerRule, LikelihoodRule
from etag.models.class_vaes import ClassVAEs
from etag.models.initial import build
from etag.models.modules import Modules


class GcOptions(MethodOptions):
    """Options of GC."""

    head_growths: ClassVar[tuple[str, ...]] = ("growing",)
    features: FrozenBackboneOptions = Field(FrozenBackboneOptions(), description="the frozen features")
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
class GC(Method[GcOptions]):
    """Classes share no parameters, so none is forgotten; the solver's head serves the base task only."""

    Options = GcOptions

    def build(self, stream: Stream) -> None:
        """Store the scale of the features and the VAEs beside the solver."""
        super().build(stream)
        self.frozen = FrozenBackbone(self.options.features, self.solver.backbone.feature_size)
        self.classes: Modules[ClassVAEs] = Modules()
        self.parts |= {"scale": self.frozen.scale, "generator": self.classes}

    def check(self, task_sizes: Sequence[int]) -> None:
        """The features must come from somewhere."""
        super().check(task_sizes)
        self.frozen.check(self.context.model.weights, self.embedding is not None)

    def add_classes(self, classes: int) -> None:
        """Add a VAE for each new class."""
        super().add_classes(classes)
        o, features = self.options.generator, self.solver.backbone.feature_size
        generator = self.stream("grow").generator("generator")
        self.classes.append(build(lambda: ClassVAEs(classes, features, o.latent, o.hidden), generator))

    def new_outputs(self, classes: int) -> int:
        """The solver's head has the base classes only, and none if the backbone is not trained."""
        return self.frozen.head_outputs(classes, first=len(self.task_sizes) == 1)

    def phases(self, task: Task) -> Plan:
        """Train the backbone at the base task; then the VAEs of the task's classes, all at once."""
        if self.frozen.trains(task):
            yield self.solver_phase(task, [self.cross_entropy(task)])
        found = yield self.features_pass("features", task.train, self.options.features.passes)
        features = self.frozen.scaled(task, CachedFeatures.of(found, len(task.train)))
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
        return LikelihoodRule(self.frozen.scale, self.classes, self.options.samples)

    def remarks(self) -> dict[str, str]:
        """Where the features come from."""
        return {"features": self.frozen.remark(self.context.model.weights)}
