"""Replay of images with the generators of features, which here generate vectors of pixels between 0 and 1."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from etag.core.outputs import Need, Outputs, require
from etag.core.scenario import Task
from etag.core.work import Batch, Batches, StepData, Term
from etag.data.preprocess import Preprocess
from etag.losses.classification import cross_entropy
from etag.models.solver import Solver

Replay = Callable[
    [Batch], tuple[Tensor, Tensor]
]  # labels and inputs of generated old examples, one per row of the batch


class Pixels(nn.Module):
    """The module of a pass that collects the pixels and the label of each image."""

    def __init__(self, preprocess: Preprocess) -> None:
        super().__init__()
        self._preprocess = preprocess

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """`features` (pixels) and `labels`, one row per image."""
        return {"features": self._preprocess.to_pixels(batch.inputs).flatten(1), "labels": batch.labels}


class PixelClassifier(nn.Module):
    """A solver as a classifier of pixel vectors. It shares the solver's weights and stays in evaluation mode."""

    def __init__(self, solver: Solver, preprocess: Preprocess, channels: int) -> None:
        super().__init__()
        self.solver, self._preprocess, self._channels = solver.eval(), preprocess, channels

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        """Do nothing: the classifier that guides a generator is not trained with it."""
        return self

    def forward(self, pixels: Tensor) -> Tensor:
        """Logits over all classes."""
        outputs: Outputs = self.solver(self.images(pixels), Need.LOGITS)
        return require(outputs.logits)

    def images(self, pixels: Tensor) -> Tensor:
        """Pixel vectors as normalized images."""
        return self._preprocess.to_inputs(pixels.view(len(pixels), self._channels, *(self._preprocess.size,) * 2))


@dataclass(frozen=True)
class WithReplay:
    """Batches into which `combine` mixes generated examples of old classes."""

    batches: Batches
    replay: Replay
    combine: Callable[[Batch, Tensor, Tensor], Batch]  # (batch, generated labels, generated inputs) -> batch

    def __len__(self) -> int:
        return len(self.batches)

    def epoch(self, index: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, starting with batch number `start`."""
        for batch in self.batches.epoch(index, start):
            yield self.combine(batch, *self.replay(batch))


def replace_share(share: float) -> Callable[[Batch, Tensor, Tensor], Batch]:
    """Replace a random share of the rows of a batch by generated ones."""

    def combine(batch: Batch, labels: Tensor, generated: Tensor) -> Batch:
        old = batch.draws.uniform("replayed rows", batch.total) < share
        inputs = torch.where(old[:, None], generated, batch.inputs)
        return Batch(inputs, torch.where(old, labels, batch.labels), batch.draws, batch.total)

    return combine


def append(batch: Batch, labels: Tensor, generated: Tensor) -> Batch:
    """Append the generated images, one for each real one."""
    inputs = torch.cat([batch.inputs, generated.contiguous(memory_format=torch.channels_last)])
    return Batch(inputs, torch.cat([batch.labels, labels]), batch.draws, 2 * batch.total)


def image_replay_term(task: Task, classifier: PixelClassifier, replay: Replay, weight: float) -> Term:
    """Cross-entropy of the solver on generated images of old classes, over all seen classes."""
    solver = classifier.solver

    def compute(step: StepData) -> Tensor:
        labels, pixels = replay(step.batch)
        return cross_entropy(require(solver(classifier.images(pixels), Need.LOGITS).logits), labels, 0, task.num_seen)

    return Term("replay", compute, weight)
