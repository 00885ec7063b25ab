"""Image replay: to a generator of features an image is a vector of pixels between 0 and 1, like any other feature."""

from collections.abc import Callable, Iterator
from typing import Self

import torch
from torch import Tensor, nn

from etag.core.outputs import Need, Outputs, require
from etag.core.scenario import Task
from etag.core.work import Batch, Batches, Step, Term
from etag.data.preprocess import Preprocess
from etag.losses.classification import cross_entropy
from etag.models.solver import Solver


class Pixels(nn.Module):
    """What a sweep over pixels computes: the label and the pixels of every image."""

    def __init__(self, preprocess: Preprocess) -> None:
        super().__init__()
        self._preprocess = preprocess

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """One row an image."""
        return {"features": self._preprocess.pixels(batch.inputs).flatten(1), "labels": batch.labels}


class PixelHead(nn.Module):
    """A solver as one that classifies pixels. It is the solver itself, but does not train when its user does."""

    def __init__(self, solver: Solver, preprocess: Preprocess, channels: int) -> None:
        super().__init__()
        self.solver, self._preprocess, self._channels = solver.eval(), preprocess, channels

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        """A guide only tells."""
        return self

    def forward(self, pixels: Tensor) -> Tensor:
        """Logits over all classes."""
        said: Outputs = self.solver(self.images(pixels), Need.LOGITS)
        return require(said.logits)

    def images(self, pixels: Tensor) -> Tensor:
        """Pixels as a solver's inputs."""
        return self._preprocess.inputs(pixels.view(len(pixels), self._channels, *(self._preprocess.size,) * 2))


class ReplayMixture:
    """Batches in which a random share of the rows is replaced by what is made of old classes."""

    def __init__(self, batches: Batches, share: float, make: Callable[[Batch], tuple[Tensor, Tensor]]) -> None:
        self._batches, self._share, self._make = batches, share, make

    def __len__(self) -> int:
        return len(self._batches)

    def epoch(self, index: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, from the one numbered `start` on."""
        for batch in self._batches.epoch(index, start):
            labels, made = self._make(batch)
            old = batch.draws.uniform("replayed rows", batch.total) < self._share
            inputs = torch.where(old[:, None], made, batch.inputs)
            yield Batch(inputs, torch.where(old, labels, batch.labels), batch.draws, batch.total)


class WithReplayed:
    """Batches to each of which as many made images of old classes are joined."""

    def __init__(self, batches: Batches, make: Callable[[Batch], tuple[Tensor, Tensor]]) -> None:
        self._batches, self._make = batches, make

    def __len__(self) -> int:
        return len(self._batches)

    def epoch(self, index: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, from the one numbered `start` on: real images first."""
        for batch in self._batches.epoch(index, start):
            labels, made = self._make(batch)
            inputs = torch.cat([batch.inputs, made.contiguous(memory_format=torch.channels_last)])
            yield Batch(inputs, torch.cat([batch.labels, labels]), batch.draws, 2 * batch.total)


def image_replay_term(
    task: Task, head: PixelHead, make: Callable[[Batch], tuple[Tensor, Tensor]], weight: float
) -> Term:
    """Cross-entropy of the solver on made images of old classes, over all classes seen."""
    solver = head.solver

    def compute(step: Step) -> Tensor:
        labels, pixels = make(step.batch)
        return cross_entropy(require(solver(head.images(pixels), Need.LOGITS).logits), labels, 0, task.seen)

    return Term("replay", compute, weight)
