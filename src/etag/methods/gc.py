"""GC: the generative classifier (van de Ven et al., 2021). Each class has a small VAE; the likeliest class wins."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt
from torch import nn

from etag.core.options import Options, Schedule
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Batch, ParameterGroup, Phase, Plan, Terms
from etag.data.batches import ClassBatches
from etag.losses.generation import prior_divergence, reparameterize, squared_error
from etag.methods.base import MethodInfo
from etag.methods.frozen_features import FrozenFeatureMethod, FrozenFeatureMethodOptions
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.generators import GeneratorTrainOptions
from etag.methods.registry import method
from etag.models.class_vaes import ClassVAEs
from etag.models.initial import build
from etag.models.modules import Modules
from etag.models.prediction import LikelihoodRule, PredictionRule


class ClassVAETrainOptions(GeneratorTrainOptions):
    """Adam with a constant learning rate of 1e-3; a step trains all classes of the task, each on its own batch."""

    lr: PositiveFloat = Field(1e-3, description="learning rate")
    steps: PositiveInt | None = Field(500, description="optimizer steps per class")
    batch_size: PositiveInt = Field(256, description="features per class and step")
    schedule: Schedule = Field("constant", description="learning-rate schedule")


class ClassVAEOptions(Options):
    """The VAE of a class."""

    latent: PositiveInt = Field(20, description="size of the latent code")
    hidden: PositiveInt = Field(85, description="width of the hidden layer")
    train: ClassVAETrainOptions = Field(ClassVAETrainOptions(), description="training of the VAEs")


class ClassVAEObjective(nn.Module):
    """Minus the ELBO of every class, divided by the feature's size and summed over classes, which share no
    parameters."""

    def __init__(self, classes: ClassVAEs) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, batch: Batch) -> Terms:
        """The weighted terms; a row of the batch holds one feature of each class."""
        features = batch.inputs.transpose(0, 1)  # (classes, rows, feature)
        mean, log_variance = self.classes.encode(features)
        noise = batch.draws.normal("posterior", batch.total, len(features), self.classes.latent).transpose(0, 1)
        decoded = self.classes.decode(reparameterize(mean, log_variance, noise))
        scale = len(features) / self.classes.features  # turns the mean over all rows into a sum of the means of classes
        return {
            "kl": scale * prior_divergence(mean.flatten(0, 1), log_variance.flatten(0, 1)),
            "recon": scale * squared_error(decoded.flatten(0, 1), features.flatten(0, 1)),
        }


class GcOptions(FrozenFeatureMethodOptions):
    """Options of GC."""

    generator: ClassVAEOptions = Field(ClassVAEOptions(), description="the VAE of a class")
    samples: PositiveInt | Literal["mean"] = Field(
        "mean", description="latent codes per likelihood; mean: the mean code only, fast"
    )


@method(
    "gc",
    MethodInfo(
        title="GC",
        color="#CC79A7",
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
        self.parts["generator"] = self.class_vaes = Modules[ClassVAEs]()

    def add_classes(self, classes: int) -> None:
        """Add a VAE for each new class."""
        super().add_classes(classes)
        o, features = self.options.generator, self.solver.backbone.output_size
        generator = self.stream("grow").torch_generator("generator")
        self.class_vaes.append(build(lambda: ClassVAEs(classes, features, o.latent, o.hidden), generator))

    def learn_features(self, task: Task, features: CachedFeatures) -> Plan:
        """Train the VAEs of the task's classes, all at once."""
        training, (*_, new) = self.options.generator.train.for_task(task.index), self.class_vaes
        batches = ClassBatches(
            features.all_features,
            features.all_labels - task.num_old,
            training.batch_size,
            self.stream("generator"),
            self.context.placement,
        )
        yield Phase("generator", ClassVAEObjective(new), batches, (ParameterGroup(list(new.parameters())),), training)

    def prediction_rule(self) -> PredictionRule:
        """The highest likelihood."""
        return LikelihoodRule(self.scale, self.class_vaes, self.options.samples)
