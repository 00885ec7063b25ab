"""Answer rules: how a feature becomes scores over the classes seen.

Scores are logarithms of probabilities up to a constant per row; the highest one is the prediction. A rule describes
its structure in JSON values, so that a saved classifier can be built again without the method that trained it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Self, TypeVar

import torch
from torch import Tensor, nn

from etag.core.random import Stream
from etag.models.class_vaes import ClassVAEs
from etag.models.heads import LinearHead, empty_head
from etag.models.modules import FeatureScale, Modules, StoredTensors
from etag.models.replay_network import hidden_layers


class AnswerRule(nn.Module, ABC):
    """Maps features, one row per image, to scores, one column per class."""

    kind: ClassVar[str]

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """Scores of the classes, one row per image."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The arguments of `empty`, as JSON values."""

    @classmethod
    @abstractmethod
    def empty(cls, **values: Any) -> Self:
        """A rule of the described structure, with uninitialized weights."""


ANSWER_RULES: dict[str, type[AnswerRule]] = {}
R = TypeVar("R", bound=type[AnswerRule])


def answer_rule(kind: str) -> Callable[[R], R]:
    """Decorator: register an answer rule under the name that is saved with a model."""

    def register(cls: R) -> R:
        cls.kind = kind
        ANSWER_RULES[kind] = cls
        return cls

    return register


@answer_rule("head")
class HeadRule(AnswerRule):
    """The logits of a head: of its first `classes` classes, each of which has `outputs_per_class` outputs. The first
    output of a class is its score."""

    def __init__(self, head: LinearHead, classes: int, outputs_per_class: int = 1) -> None:
        super().__init__()
        self.head, self._classes, self._outputs = head, classes, outputs_per_class

    def forward(self, features: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(features)
        return logits[:, : self._classes * self._outputs : self._outputs]

    def describe(self) -> dict[str, Any]:
        """Head and numbers of classes and outputs."""
        return {"head": self.head.describe(), "classes": self._classes, "outputs_per_class": self._outputs}

    @classmethod
    def empty(cls, **values: Any) -> Self:
        """With an empty head."""
        return cls(empty_head(**values["head"]), values["classes"], values["outputs_per_class"])


@answer_rule("heads per task")
class PerTaskRule(AnswerRule):
    """Log-probabilities within each task's own head: the highest probability over all heads wins."""

    def __init__(self, head: LinearHead, task_sizes: Sequence[int]) -> None:
        super().__init__()
        self.head, self._task_sizes = head, list(task_sizes)

    def forward(self, features: Tensor) -> Tensor:
        """Log-probabilities of each head, side by side."""
        logits: Tensor = self.head(features)
        heads = torch.split(logits[:, : sum(self._task_sizes)], self._task_sizes, dim=1)
        return torch.cat([head.log_softmax(1) for head in heads], dim=1)

    def describe(self) -> dict[str, Any]:
        """Head and sizes of the tasks."""
        return {"head": self.head.describe(), "task_sizes": self._task_sizes}

    @classmethod
    def empty(cls, **values: Any) -> Self:
        """With an empty head."""
        return cls(empty_head(**values["head"]), values["task_sizes"])


class ClassScores(StoredTensors):
    """IL2M's second memory: mean scores of classes, and mean confidences of tasks.

    For each class its mean score on its own images when it was learned (`initial`) and now (`current`); for each task
    how confident the solver was on its images when they were new (`confidence`).
    """

    initial: Tensor
    current: Tensor
    confidence: Tensor  # per task
    task: Tensor  # of each class

    def __init__(self) -> None:
        super().__init__()
        nothing = torch.empty(0)
        self.store(initial=nothing, current=nothing, confidence=nothing, task=nothing.long())

    def add_task(self, initial: Tensor, current_old: Tensor, confidence: Tensor) -> None:
        """Add the mean scores of new classes, replace the current ones of old classes, add the task's confidence."""
        index = self.confidence.new_full((len(initial),), len(self.confidence), dtype=torch.long)
        self.store(
            initial=torch.cat([self.initial, initial]),
            current=torch.cat([current_old, initial]),
            confidence=torch.cat([self.confidence, confidence.reshape(1)]),
            task=torch.cat([self.task, index]),
        )

    @property
    def is_new(self) -> Tensor:
        """Whether each class belongs to the latest task."""
        return self.task == len(self.confidence) - 1

    @property
    def factors(self) -> Tensor:
        """The factor on each class's score: 1 for new classes, and for those whose means allow no ratio."""
        ratio = (self.initial / self.current) * (self.confidence[-1] / self.confidence[self.task])
        sound = (self.initial > 0) & (self.current > 0) & (self.confidence[self.task] > 0) & (self.confidence[-1] > 0)
        return torch.where(sound & ~self.is_new, ratio, torch.ones_like(ratio))


@answer_rule("rectified")
class RectifiedRule(AnswerRule):
    """IL2M (Belouadah and Popescu, 2019): where a new class would win, old classes get their earlier scores back."""

    def __init__(self, head: LinearHead, scores: ClassScores) -> None:
        super().__init__()
        self.head, self.scores = head, scores

    def forward(self, features: Tensor) -> Tensor:
        """Logits, rectified where the highest is that of a new class."""
        logits: Tensor = self.head(features)[:, : len(self.scores.initial)]
        new_wins = self.scores.is_new[logits.argmax(1)]
        return torch.where(new_wins[:, None], logits * self.scores.factors, logits)

    def describe(self) -> dict[str, Any]:
        """The head."""
        return {"head": self.head.describe()}

    @classmethod
    def empty(cls, **values: Any) -> Self:
        """With an empty head and no scores."""
        return cls(empty_head(**values["head"]), ClassScores())


@answer_rule("likelihood")
class LikelihoodRule(AnswerRule):
    """The log-likelihood of the scaled feature under the VAE of each class; all classes have the same prior."""

    def __init__(self, scale: FeatureScale, classes: Modules[ClassVAEs], samples: int | Literal["mean"]) -> None:
        super().__init__()
        self.scale, self.classes = scale, classes
        self._samples = samples

    def forward(self, features: Tensor) -> Tensor:
        """Log-likelihoods."""
        features = self.scale(features)
        noise = self._noise().to(features)
        return torch.cat([vaes.log_likelihoods(features, noise) for vaes in self.classes], dim=1)

    def _noise(self) -> Tensor:
        """The same draws at every call: a prediction does not depend on earlier ones."""
        latent = next(iter(self.classes)).latent
        if self._samples == "mean":
            return torch.zeros(1, latent)
        return torch.randn(self._samples, latent, generator=Stream.root(0).generator("samples"))

    def describe(self) -> dict[str, Any]:
        """Sizes of the VAEs, one group per task."""
        groups = [{"classes": v.count, "latent": v.latent, "hidden": v.hidden} for v in self.classes]
        return {"features": self.scale.features, "groups": groups, "samples": self._samples}

    @classmethod
    def empty(cls, **values: Any) -> Self:
        """With uninitialized VAEs."""
        features = values["features"]
        classes: Modules[ClassVAEs] = Modules(
            ClassVAEs(group["classes"], features, group["latent"], group["hidden"]) for group in values["groups"]
        )
        return cls(FeatureScale(features), classes, values["samples"])


@answer_rule("hidden layers")
class HiddenLayersRule(AnswerRule):
    """The logits of a head behind hidden layers that take scaled features (BI-R)."""

    def __init__(self, scale: FeatureScale, encoder: nn.Sequential, head: LinearHead) -> None:
        super().__init__()
        self.scale, self.encoder, self.head = scale, encoder, head

    def forward(self, features: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.encoder(self.scale(features)))
        return logits

    def describe(self) -> dict[str, Any]:
        """The head and the number of features; the hidden layers are as wide as the head's input."""
        return {"features": self.scale.features, "head": self.head.describe()}

    @classmethod
    def empty(cls, **values: Any) -> Self:
        """With uninitialized layers."""
        head = empty_head(**values["head"])
        return cls(FeatureScale(values["features"]), hidden_layers(values["features"], head.features), head)
