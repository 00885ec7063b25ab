"""What makes images out of a frozen solver: a generator, and ears at its BatchNorm layers."""

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from etag.core.outputs import Need, Outputs, needed
from etag.models.modules import BatchNorm, ConvNorm
from etag.models.solver import Frozen, Solver

SMALLEST = 7  # side of the map that images grow from, or a little more


class ImageGenerator(nn.Module):
    """From a normal code to a normalised image: a linear layer, then maps that double their side.

    Its last layer makes every channel of a batch as wide as that of a normalised image.
    """

    def __init__(self, channels: int, size: int, latent: int = 1000) -> None:
        super().__init__()
        self.latent = latent
        doublings = max(1, int(math.log2(size / SMALLEST)))
        self._sides = [math.ceil(size / 2**power) for power in reversed(range(doublings + 1))]
        self.enter = nn.Linear(latent, 128 * self._sides[0] ** 2)
        self.norm = nn.BatchNorm2d(128)
        widths = [128] * doublings + [64]
        self.blocks = nn.ModuleList(
            nn.Sequential(ConvNorm(before, after, 3), nn.LeakyReLU(0.2)) for before, after in pairwise(widths)
        )
        self.leave = nn.Sequential(
            nn.Conv2d(64, channels, 3, padding=1), nn.Tanh(), nn.BatchNorm2d(channels, affine=False)
        )

    def forward(self, codes: Tensor) -> Tensor:
        """One image a code."""
        first, *sides = self._sides
        maps = self.norm(self.enter(codes).view(len(codes), 128, first, first))
        for side, block in zip(sides, self.blocks, strict=True):
            maps = block(functional.interpolate(maps, size=(side, side)))
        images: Tensor = self.leave(maps)
        return images


class Statistics(NamedTuple):
    """Of each channel at a BatchNorm layer: those of the batch, and those that it has learnt."""

    mean: Tensor
    variance: Tensor
    running_mean: Tensor
    running_variance: Tensor


class Listening(nn.Module):
    """A frozen copy of a solver that also tells what enters its BatchNorm layers."""

    def __init__(self, solver: Solver) -> None:
        super().__init__()
        self.solver = Frozen(solver)
        self._heard: list[Statistics] = []
        for part in self.solver.network.backbone.modules():
            if isinstance(part, ConvNorm):
                part.folds = False
            elif isinstance(part, BatchNorm):
                part.register_forward_pre_hook(self._hear)

    def _hear(self, norm: nn.Module, entering: tuple[Tensor]) -> None:
        variance, mean = torch.var_mean(entering[0], dim=(0, 2, 3), correction=0)
        self._heard.append(Statistics(mean, variance, norm.running_mean, norm.running_var))  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> tuple[Tensor, list[Statistics]]:
        """Logits; the statistics of every BatchNorm layer."""
        self._heard = []
        said: Outputs = self.solver.network(images, Need.LOGITS)
        return needed(said.logits), self._heard
