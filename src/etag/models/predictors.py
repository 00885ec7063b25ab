"""How a solver's outputs become scores over the classes seen."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from etag.core.outputs import Need, Outputs, require
from etag.core.random import Stream
from etag.models.class_vaes import ClassVAEs
from etag.models.modules import Modules, StoredTensors
from etag.models.replay_network import ReplayNetwork


class LinearPredictor(nn.Module):
    """Softmax over the head's outputs of `classes` classes: the first of every `every` outputs is a class's own."""

    need, probabilities = Need.LOGITS, True

    def __init__(self, classes: int, every: int = 1) -> None:
        super().__init__()
        self.classes, self.every = classes, every

    def forward(self, outputs: Outputs) -> Tensor:
        """Probabilities, one row an image."""
        return require(outputs.logits)[:, : self.classes * self.every : self.every].softmax(1)


class MultiHeadPredictor(nn.Module):
    """A softmax for each task's head: the answer is the highest probability over all heads."""

    need, probabilities = Need.LOGITS, True

    def __init__(self, task_sizes: Sequence[int]) -> None:
        super().__init__()
        self.task_sizes = list(task_sizes)

    def forward(self, outputs: Outputs) -> Tensor:
        """Probabilities within each task, side by side."""
        heads = torch.split(require(outputs.logits)[:, : sum(self.task_sizes)], self.task_sizes, dim=1)
        return torch.cat([head.softmax(1) for head in heads], dim=1)


class RectifyingPredictor(StoredTensors):
    """IL2M (Belouadah and Popescu, 2019): where a new class would win, old classes get back the score they once had.

    It keeps, for every class, its mean score on its own images when it was learned (`initial`) and now (`current`),
    and, for every task, how confident the solver was of its images when they were new (`confidence`).
    """

    need, probabilities = Need.LOGITS, False

    def __init__(self) -> None:
        super().__init__()
        self.keep(
            initial=torch.empty(0), current=torch.empty(0), confidence=torch.empty(0), task=torch.empty(0).long()
        )

    initial: Tensor
    current: Tensor
    confidence: Tensor  # per task
    task: Tensor  # of every class

    def learn(self, initial: Tensor, current_old: Tensor, confidence: Tensor) -> None:
        """After a task: of new classes their mean scores, of old ones their mean scores now, and the confidence."""
        index = self.confidence.new_full((len(initial),), len(self.confidence), dtype=torch.long)
        self.keep(
            initial=torch.cat([self.initial, initial]),
            current=torch.cat([current_old, initial]),
            confidence=torch.cat([self.confidence, confidence.reshape(1)]),
            task=torch.cat([self.task, index]),
        )

    def forward(self, outputs: Outputs) -> Tensor:
        """Scores: logits, rectified where the highest is that of a new class."""
        scores = require(outputs.logits)[:, : len(self.initial)]
        new = self.task == len(self.confidence) - 1
        top_is_new = new[scores.argmax(1)]
        return torch.where(top_is_new[:, None], scores * self.factors, scores)

    @property
    def factors(self) -> Tensor:
        """Of every class's score. New classes keep theirs, and so do those whose means allow no ratio."""
        ratio = (self.initial / self.current) * (self.confidence[-1] / self.confidence[self.task])
        sound = (self.initial > 0) & (self.current > 0) & (self.confidence[self.task] > 0) & (self.confidence[-1] > 0)
        return torch.where(sound & (self.task < len(self.confidence) - 1), ratio, torch.ones_like(ratio))


class LikelihoodPredictor(nn.Module):
    """Scores are the classes' log-likelihoods of the feature, each class being as likely as another before."""

    need, probabilities = Need.FEATURE, False

    def __init__(self, scale: nn.Module, classes: Modules[ClassVAEs], samples: int | Literal["mean"]) -> None:
        super().__init__()
        self.scale, self.classes = scale, classes
        self._samples = samples

    def forward(self, outputs: Outputs) -> Tensor:
        """One row an image, one column a class."""
        features = self.scale(require(outputs.feature))
        noise = self._noise().to(features)
        return torch.cat([vaes.log_likelihoods(features, noise) for vaes in self.classes], dim=1)

    def _noise(self) -> Tensor:
        """The same at every call: an answer does not depend on what was asked before."""
        latent = next(iter(self.classes)).latent
        if self._samples == "mean":
            return torch.zeros(1, latent)
        return torch.randn(self._samples, latent, generator=Stream.root(0).generator("samples"))


class NetworkPredictor(nn.Module):
    """Softmax of what a network says of scaled features."""

    need, probabilities = Need.FEATURE, True

    def __init__(self, scale: nn.Module, network: ReplayNetwork) -> None:
        super().__init__()
        self.scale, self.network = scale, network

    def forward(self, outputs: Outputs) -> Tensor:
        """Probabilities, one row an image."""
        return self.network.classify(self.scale(require(outputs.feature))).softmax(1)
