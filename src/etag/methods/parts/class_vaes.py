"""A VAE for each class: its options, and what its training minimizes."""

from pydantic import Field, PositiveFloat, PositiveInt
from torch import nn

from etag.core.options import Options, Schedule
from etag.core.work import Batch, Terms
from etag.losses.generation import prior_divergence, reparameterize, squared_error
from etag.methods.parts.replay import GeneratorTrainOptions
from etag.models.class_vaes import ClassVAEs


class ClassVAETrainOptions(GeneratorTrainOptions):
    """Adam 1e-3 throughout; a step is one of every class of the task, with a batch of its own."""

    lr: PositiveFloat = 1e-3
    steps: PositiveInt | None = Field(500, description="of each class")
    batch_size: PositiveInt = Field(256, description="features of each class per step")
    schedule: Schedule = "constant"


class ClassVAEOptions(Options):
    """The VAE of a class."""

    latent: PositiveInt = 20
    hidden: PositiveInt = 85
    train: ClassVAETrainOptions = ClassVAETrainOptions()


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
        made = self.classes.decode(reparameterize(mean, log_variance, noise))
        scale = len(features) / self.classes.features  # the mean over rows of all classes, as a sum of classes
        return {
            "kl": scale * prior_divergence(mean.flatten(0, 1), log_variance.flatten(0, 1)),
            "recon": scale * squared_error(made.flatten(0, 1), features.flatten(0, 1)),
        }
