"""ABD's generator, trained by inverting a frozen solver: its options and its loss."""

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import nn

from etag.core.options import Options, Schedule
from etag.core.work import Batch, Terms
from etag.losses.inversion import class_balance, confidence, smoothness_penalty, statistics_divergence
from etag.methods.parts.generators import GeneratorTrainOptions
from etag.models.inversion import BatchNormRecorder, ImageGenerator


class InversionTrainOptions(GeneratorTrainOptions):
    """Adam with a constant learning rate of 1e-3."""

    lr: PositiveFloat = Field(1e-3, description="learning rate")
    steps: PositiveInt = Field(10_000, description="steps after each task but the last; 50,000 for ImageNet")
    schedule: Schedule = Field("constant", description="learning-rate schedule")


class InversionOptions(Options):
    """The generator and the weights of its loss terms."""

    latent: PositiveInt = Field(1000, description="size of the random code")
    train: InversionTrainOptions = Field(InversionTrainOptions(), description="training of the generator")
    confidence: NonNegativeFloat = Field(1.0, description="weight of confident predictions")
    tau: PositiveFloat = Field(1000.0, description="temperature of the confidence term")
    balance: NonNegativeFloat = Field(1.0, description="weight of equal shares for all classes")
    statistics: NonNegativeFloat = Field(50.0, description="weight of matching BatchNorm statistics, over all layers")
    smoothness: NonNegativeFloat = Field(1e-3, description="weight of smooth images")


class InversionObjective(nn.Module):
    """The loss of generated images under a frozen solver."""

    def __init__(
        self, generator: ImageGenerator, solver: BatchNormRecorder, classes: int, options: InversionOptions
    ) -> None:
        super().__init__()
        self.generator, self.solver = generator, solver
        self._classes, self._options = classes, options

    def forward(self, batch: Batch) -> Terms:
        """The weighted terms; `batch.inputs` are random codes."""
        o, images = self._options, self.generator(batch.inputs)
        logits, layers = self.solver(images)
        logits = logits[:, : self._classes]
        terms = {
            "confidence": o.confidence * confidence(logits, o.tau),
            "balance": o.balance * class_balance(logits),
            "smoothness": o.smoothness * smoothness_penalty(images),
        }
        if layers:
            divergence = torch.stack([statistics_divergence(*layer) for layer in layers]).mean()
            terms["statistics"] = o.statistics * divergence
        return terms
