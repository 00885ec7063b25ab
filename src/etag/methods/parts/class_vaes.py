"""One VAE per class: its options and its loss."""

from pydantic import Field, PositiveFloat, PositiveInt
from torch import nn

from etag.core.options import Options, Schedule
from etag.core.work import Batch, Terms
from etag.losses.generation import prior_divergence, reparameterize, squared_error
from etag.methods.parts.generators import GeneratorTrainOptions
from etag.models.class_vaes import ClassVAEs


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
    """Minus the ELBO of every class, per number of the feature; summed over classes, which share no parameters."""

    def __init__(self, classes: ClassVAEs) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, batch: Batch) -> Terms:
        """The weighted terms; a row of the batch holds one feature of each class."""
        features = batch.inputs.transpose(0, 1)  # (classes, rows, feature)
        mean, log_variance = self.classes.encode(features)
        noise = batch.draws.normal("posterior", batch.total, len(features), self.classes.latent).transpose(0, 1)
        decoded = self.classes.decode(reparameterize(mean, log_variance, noise))
        scale = len(features) / self.classes.features  # the mean over rows of all classes, as a sum of classes
        return {
            "kl": scale * prior_divergence(mean.flatten(0, 1), log_variance.flatten(0, 1)),
            "recon": scale * squared_error(decoded.flatten(0, 1), features.flatten(0, 1)),
        }
