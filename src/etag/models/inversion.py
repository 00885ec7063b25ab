"""Generating images from a frozen solver (ABD): an image generator, and a recorder of BatchNorm statistics."""

import math
from functools import partial
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from etag.core.outputs import Need, Outputs, require
from etag.models.modules import BatchNorm, ConvNorm
from etag.models.solver import Solver

MIN_SIDE = 7  # the first map has at least this side, if images have at least twice this side


class ImageGenerator(nn.Module):
    """Maps standard normal codes to normalized images: a linear layer, then blocks that each double the side. The last
    layer, a BatchNorm without weights, gives every channel zero mean and unit variance over the batch."""

    def __init__(self, channels: int, size: int, latent: int = 1000) -> None:
        super().__init__()
        self.latent = latent
        doublings = max(1, int(math.log2(size / MIN_SIDE)))
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
        """Return one image per code: (rows, channels, size, size)."""
        first, *sides = self._sides
        maps = self.norm(self.enter(codes).view(len(codes), 128, first, first))
        for side, block in zip(sides, self.blocks, strict=True):
            maps = block(functional.interpolate(maps, size=(side, side)))
        images: Tensor = self.leave(maps)
        return images


# of each channel at the input of a BatchNorm layer: mean and variance of the batch, then the layer's running ones
LayerStatistics = tuple[Tensor, Tensor, Tensor, Tensor]


class BatchNormRecorder(nn.Module):
    """Wraps a solver, without copying it, to also return the statistics of what enters its BatchNorm layers. The solver
    always stays in evaluation mode."""

    def __init__(self, solver: Solver) -> None:
        super().__init__()
        self.solver = solver.eval()

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        """Do nothing, so that the solver stays in evaluation mode."""
        return self

    def forward(self, images: Tensor) -> tuple[Tensor, list[LayerStatistics]]:
        """Return the logits, and the statistics of every BatchNorm layer (none is folded, else it would not run)."""
        statistics: list[LayerStatistics] = []
        pairs = [part for part in self.solver.backbone.modules() if isinstance(part, ConvNorm)]
        norms = [part for part in self.solver.backbone.modules() if isinstance(part, BatchNorm)]
        handles = [norm.register_forward_pre_hook(partial(_record, statistics)) for norm in norms]
        for pair in pairs:
            pair.folds = False
        try:
            outputs: Outputs = self.solver(images, Need.LOGITS)
        finally:
            for pair in pairs:
                pair.folds = True
            for handle in handles:
                handle.remove()
        return require(outputs.logits), statistics


def _record(statistics: list[LayerStatistics], norm: nn.Module, inputs: tuple[Tensor]) -> None:
    variance, mean = torch.var_mean(inputs[0], dim=(0, 2, 3), correction=0)
    statistics.append((mean, variance, norm.running_mean, norm.running_var))  # type: ignore[arg-type]
