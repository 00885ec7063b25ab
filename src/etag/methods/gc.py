"""GC: the generative classifier (van de Ven et al., 2021). Every class has a small VAE; the likeliest class wins."""

from typing import Literal

from pydantic import Field, PositiveInt
from torch import Tensor, nn

from etag.core.outputs import Predictor
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import ParameterGroup, Phase, Plan
from etag.data.batches import ClassBatches
from etag.methods.base import MethodInfo
from etag.methods.parts.class_vaes import ClassVAEObjective, ClassVAEOptions
from etag.methods.parts.frozen import FrozenFeatureMethod, FrozenFeatureOptions
from etag.methods.registry import method
from etag.models.class_vaes import ClassVAEs
from etag.models.initial import build
from etag.models.modules import Modules
from etag.models.predictors import LikelihoodPredictor


class GcOptions(FrozenFeatureOptions):
    """GC's own options."""

    generator: ClassVAEOptions = ClassVAEOptions()
    samples: PositiveInt | Literal["mean"] = Field(
        "mean",
        description="latent codes of the likelihood's importance sampling; mean: the most likely code alone, fast",
    )


@method(
    "gc",
    MethodInfo(
        title="GC",
        color="#CC79A7",
        summary="a small VAE for each class on frozen features; the class that holds a feature likeliest wins",
        source="van de Ven et al., 2021",
        stores="backbone, head of the base classes; a VAE per class",
        head="none: likelihoods",
        generator="a VAE per class on features; nothing is replayed",
    ),
)
class GC(FrozenFeatureMethod):
    """Classes never meet in training, so nothing can be forgotten."""

    Options = GcOptions

    def build(self, stream: Stream) -> None:
        """VAEs too, still none."""
        super().build(stream)
        self.classes: Modules[ClassVAEs] = Modules()

    def grow(self, classes: int) -> None:
        """A VAE for each new class."""
        super().grow(classes)
        o, features = self.options.generator, self.solver.backbone.feature_size
        generator = self.stream("grow").generator("generator")
        self.classes.append(build(lambda: ClassVAEs(classes, features, o.latent, o.hidden), generator))

    def learn(self, task: Task, features: Tensor, labels: Tensor) -> Plan:
        """The task's VAEs, all at once."""
        training, (*_, new) = self.options.generator.train.for_task(task.index), self.classes
        batches = ClassBatches(
            features, labels - task.old, training.batch_size, self.stream("generator"), self.context.placement
        )
        objective = ClassVAEObjective(new)
        yield Phase("generator", objective, batches, (ParameterGroup(list(new.parameters())),), training)

    def predictor(self) -> Predictor:
        """By likelihood."""
        return LikelihoodPredictor(self.scale, self.classes, self.options.samples)

    def parts(self) -> dict[str, nn.Module]:
        """The VAEs too."""
        return super().parts() | {"generator": self.classes}
