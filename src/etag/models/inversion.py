"""What makes images out of a frozen solver: a generator, and ears at its BatchNorm layers."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from etag.core.outputs import Need, Outputs, require
from etag.models.modules import BatchNorm, ConvNorm
from etag.models.solver import Solver

SMALLEST = 7  # side of the map that images grow from, or a little more


class ImageGenerator(nn.Module):
    """From a normal code to a normalized image: a linear layer, then maps that double their side.

    Its last layer makes every channel of a batch as wide as that of a normalized image.
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
    """Of each channel at a BatchNorm layer: those of the batch, and those that it has learned."""

    mean: Tensor
    variance: Tensor
    running_mean: Tensor
    running_variance: Tensor


class BatchNormRecorder(nn.Module):
    """A solver that also tells what enters its BatchNorm layers. It is the solver itself, but does not train when its
    user does."""

    def __init__(self, solver: Solver) -> None:
        super().__init__()
        self.solver = solver.eval()

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        """Who only tells does not train."""
        return self

    def forward(self, images: Tensor) -> tuple[Tensor, list[Statistics]]:
        """Logits; the statistics of every BatchNorm layer."""
        with self._heard() as heard:
            said: Outputs = self.solver(images, Need.LOGITS)
        return require(said.logits), heard

    @contextmanager
    def _heard(self) -> Iterator[list[Statistics]]:
        """What is noted within. Folded into their convolutions, the layers would have no input of their own."""
        heard: list[Statistics] = []
        pairs = [part for part in self.solver.backbone.modules() if isinstance(part, ConvNorm)]
        norms = [part for part in self.solver.backbone.modules() if isinstance(part, BatchNorm)]
        handles = [norm.register_forward_pre_hook(partial(_hear, heard)) for norm in norms]
        for pair in pairs:
            pair.folds = False
        try:
            yield heard
        finally:
            for pair in pairs:
                pair.folds = True
            for handle in handles:
                handle.remove()


def _hear(heard: list[Statistics], norm: nn.Module, entering: tuple[Tensor]) -> None:
    variance, mean = torch.var_mean(entering[0], dim=(0, 2, 3), correction=0)
    heard.append(Statistics(mean, variance, norm.running_mean, norm.running_var))  # type: ignore[arg-type]
