"""Inverting a solver: the generator's options, and what its training minimizes."""

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import nn

from etag.core.options import Options, Schedule
from etag.core.work import Batch, Terms
from etag.losses.inversion import class_balance, confidence, smoothness_penalty, statistics_divergence
from etag.methods.parts.replay import GeneratorTrainOptions
from etag.models.inversion import BatchNormRecorder, ImageGenerator


class InversionTrainOptions(GeneratorTrainOptions):
    """Adam 1e-3 throughout."""

    lr: PositiveFloat = 1e-3
    steps: PositiveInt = Field(10_000, description="after each task but the last; 50,000 for ImageNet")
    schedule: Schedule = "constant"


class InversionOptions(Options):
    """The generator, and the weights of what it minimizes."""

    latent: PositiveInt = 1000
    train: InversionTrainOptions = InversionTrainOptions()
    confidence: NonNegativeFloat = 1.0
    tau: PositiveFloat = Field(1000.0, description="temperature of the confidence")
    balance: NonNegativeFloat = 1.0
    statistics: NonNegativeFloat = Field(50.0, description="shared by all BatchNorm layers")
    roughness: NonNegativeFloat = 1e-3


class InversionObjective(nn.Module):
    """What a frozen solver says of what is made."""

    def __init__(
        self, generator: ImageGenerator, solver: BatchNormRecorder, classes: int, options: InversionOptions
    ) -> None:
        super().__init__()
        self.generator, self.solver = generator, solver
        self._classes, self._options = classes, options

    def forward(self, batch: Batch) -> Terms:
        """The weighted terms; `batch.inputs` are codes."""
        o, images = self._options, self.generator(batch.inputs)
        logits, layers = self.solver(images)
        logits = logits[:, : self._classes]
        terms = {
            "confidence": o.confidence * confidence(logits, o.tau),
            "balance": o.balance * class_balance(logits),
            "roughness": o.roughness * smoothness_penalty(images),
        }
        if layers:
            divergence = torch.stack([statistics_divergence(*layer) for layer in layers]).mean()
            terms["statistics"] = o.statistics * divergence
        return terms
