"""GC: the generative classifier (van de Ven et al., 2021). Every class has a small VAE; the likeliest class wins."""

from typing import Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from etag.core.options import Options, Schedule
from etag.core.outputs import Need, Outputs, Predictor, needed
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Batch, Phase, Plan, Player, Terms
from etag.data.batches import ClassBatches
from etag.losses.generation import prior_divergence, reparametrise, squared_error
from etag.methods.base import Card
from etag.methods.parts.frozen import FrozenFeatureMethod, FrozenFeatureOptions, Scale
from etag.methods.parts.replay import GeneratorTrainOptions
from etag.methods.registry import method
from etag.models.class_vaes import ClassVAEs
from etag.models.initial import build
from etag.models.modules import Modules


class GcTrainOptions(GeneratorTrainOptions):
    """Adam 1e-3 throughout; a step is one of every class of the task, with a batch of its own."""

    lr: PositiveFloat = 1e-3
    steps: PositiveInt | None = Field(500, description="of each class")
    batch_size: PositiveInt = Field(256, description="features of each class per step")
    schedule: Schedule = "constant"


class GcGeneratorOptions(Options):
    """The VAE of a class."""

    latent: PositiveInt = 20
    hidden: PositiveInt = 85
    train: GcTrainOptions = GcTrainOptions()


class GcOptions(FrozenFeatureOptions):
    """GC's own options."""

    generator: GcGeneratorOptions = GcGeneratorOptions()
    samples: PositiveInt | Literal["mean"] = Field(
        "mean",
        description="latent codes of the likelihood's importance sampling; mean: the most likely code alone, fast",
    )


@method(
    "gc",
    Card(
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
        yield Phase("generator", objective, batches, (Player(list(new.parameters())),), training)

    def predictor(self) -> Predictor:
        """By likelihood."""
        return LikelihoodPredictor(self.scale, self.classes, self.options.samples)

    def parts(self) -> dict[str, nn.Module]:
        """The VAEs too."""
        return super().parts() | {"generator": self.classes}


class ClassVAEObjective(nn.Module):
    """The ELBO of every class, a number for each feature; classes are summed, for none has a share in another's."""

    def __init__(self, classes: ClassVAEs) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, batch: Batch) -> Terms:
        """A row of the batch is a feature of each class."""
        features = batch.inputs.transpose(0, 1)  # (classes, rows, feature)
        mean, log_variance = self.classes.encode(features)
        noise = batch.draws.normal("posterior", batch.total, len(features), self.classes.latent).transpose(0, 1)
        made = self.classes.decode(reparametrise(mean, log_variance, noise))
        scale = len(features) / self.classes.features  # the mean over rows of all classes, as a sum of classes
        return {
            "kl": scale * prior_divergence(mean.flatten(0, 1), log_variance.flatten(0, 1)),
            "recon": scale * squared_error(made.flatten(0, 1), features.flatten(0, 1)),
        }


class LikelihoodPredictor(nn.Module):
    """Scores are the classes' log-likelihoods of the feature, each class being as likely as another before."""

    need, probabilities = Need.FEATURE, False

    def __init__(self, scale: Scale, classes: Modules[ClassVAEs], samples: int | Literal["mean"]) -> None:
        super().__init__()
        self.scale, self.classes = scale, classes
        self._samples = samples

    def forward(self, outputs: Outputs) -> Tensor:
        """One row an image, one column a class."""
        features = self.scale(needed(outputs.feature))
        noise = self._noise().to(features)
        return torch.cat([vaes.log_likelihoods(features, noise) for vaes in self.classes], dim=1)

    def _noise(self) -> Tensor:
        """The same at every call: an answer does not depend on what was asked before."""
        latent = next(iter(self.classes)).latent
        if self._samples == "mean":
            return torch.zeros(1, latent)
        return torch.randn(self._samples, latent, generator=Stream.root(0).generator("samples"))
