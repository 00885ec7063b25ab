"""Feature replay: features of old classes are made again for the new classifier.

What makes them is chosen by `generator`: the paper's conditional VAE, GFR's own Wasserstein GAN, or class means.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from etag.core.options import Options, TrainOptions
from etag.core.outputs import require
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Batch, ParameterGroup, Phase, Step, Term
from etag.data.batches import FeatureBatches
from etag.losses.classification import cross_entropy
from etag.methods.base import Context, Method
from etag.methods.parts.classification import outputs_in
from etag.models.heads import LinearHead
from etag.models.initial import build
from etag.models.solver import Frozen


class GeneratorTrainOptions(TrainOptions):
    """The generator's training: Adam 1e-4, no weight decay."""

    lr: PositiveFloat = 1e-4
    weight_decay: NonNegativeFloat = 0.0
    validation: Literal[0] = Field(0, description="not for the generator: it is trained on all features")


class GeneratorOptions(Options):
    """What all generators share."""

    latent: PositiveInt = 200
    hidden: PositiveInt = 512
    train: GeneratorTrainOptions = GeneratorTrainOptions()
    feature_passes: PositiveInt = Field(
        10,
        description="augmented passes over the task whose features are cached; epochs use them in turn. As many as "
        "epochs is the release's fresh augmentation",
    )
    last_task: bool = Field(True, description="train the generator after the last task too (Algorithm 1)")


class Decoder(Protocol):
    """A network that makes features."""

    latent: int

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Learn of new classes."""

    def decode(self, latent: Tensor, labels: Tensor) -> Tensor:
        """The feature of a latent code and a class."""


Normal = Callable[[str, int], Tensor]  # standard normal draws for a purpose, so many a row
G = TypeVar("G", bound=GeneratorOptions)
N = TypeVar("N", bound=nn.Module)


class FeatureReplay(ABC, Generic[G, N]):
    """A generator that makes old features again, and its training on features of the task."""

    role = "generator"  # under which the network is kept
    generator: N

    def __init__(self, options: G, context: Context) -> None:
        self.options, self.context = options, context
        self.old: Frozen[N] | None = None

    @abstractmethod
    def network(self, features: int) -> N:
        """A generator that knows no class yet."""

    @abstractmethod
    def objective(self, task: Task, head: nn.Module, weights: dict[str, float]) -> nn.Module:
        """What its training minimizes; a batch's inputs are features."""

    def build(self, features: int, stream: Stream) -> None:
        """Put the generator in place."""
        self.generator = build(lambda: self.network(features), stream.generator("generator"))

    def begin_task(self, task: Task) -> None:
        """Keep the generator of the previous task."""
        if task.index:
            self.old = Frozen(self.generator)

    def grow(self, classes: int, stream: Stream) -> None:
        """Make room for new classes."""
        _decoder(self.generator).grow(classes, stream.generator("generator"))

    @torch.no_grad()
    def made(self, batch: Batch, task: Task, rows: int) -> tuple[Tensor, Tensor]:
        """Labels drawn uniformly from the old classes, and features of them."""
        labels = batch.draws.integers("replay labels", 0, task.old, rows)
        old = require(self.old).network
        return labels, self.sample(old, labels, lambda purpose, size: batch.draws.normal(purpose, rows, size))

    def sample(self, network: N, labels: Tensor, normal: Normal) -> Tensor:
        """Features of these classes."""
        decoder = _decoder(network)
        return decoder.decode(normal("replay codes", decoder.latent), labels)

    def finish_task(self, task: Task, found: dict[str, Tensor], stream: Stream) -> None:
        """When it is trained on swept features of a task."""

    def groups(self) -> tuple[ParameterGroup, ...]:
        """Who is stepped in its training."""
        return (ParameterGroup(list(self.generator.parameters())),)

    def phase(
        self, task: Task, head: nn.Module, found: dict[str, Tensor], weights: dict[str, float], stream: Stream
    ) -> Phase:
        """Train the generator on swept features; `head` is the classifier that learns from what it makes."""
        training, placement = self.options.train.for_task(task.index), self.context.placement
        features = found["features"]
        passes = features.view(self.options.feature_passes, len(task.train), features.shape[1])
        labels = found["labels"][: len(task.train)]
        batches = FeatureBatches(passes, labels, training.batch_size, stream, placement, drop_last=training.drop_last)
        return Phase("generator", self.objective(task, head, weights), batches, self.groups(), training)


def _decoder(network: Any) -> Decoder:
    """That a generator is a Decoder too cannot be said in a type variable's bound."""
    decoder: Decoder = network
    return decoder


class ReplayingMethod(Method):
    """A method that keeps a generator beside its solver; the `kind` of its option `generator` is among `replays`."""

    replays: ClassVar[dict[str, type[Any]]]

    def __init__(self, options: Any, context: Context) -> None:
        self.replay = self.replays[options.generator.kind](options.generator, context)
        super().__init__(options, context)

    @abstractmethod
    def made_size(self) -> int:
        """Numbers in one thing that the generator makes."""

    def build(self, stream: Stream) -> None:
        """Solver and generator."""
        super().build(stream)
        if self.context.learns:
            self.replay.build(self.made_size(), stream)

    def begin_task(self, task: Task) -> None:
        """The old generator is kept as the old solver is."""
        self.replay.begin_task(task)
        super().begin_task(task)

    def grow(self, classes: int) -> None:
        """In head and generator."""
        super().grow(classes)
        if self.context.learns and (room := self.head_room(classes)):
            self.replay.grow(room, self.stream("grow"))

    def parts(self) -> dict[str, nn.Module]:
        """The generator too."""
        return super().parts() | ({self.replay.role: self.replay.generator} if self.context.learns else {})


def generator_by_name(value: Any) -> Any:
    """A generator's options where a name alone may stand for its defaults; a conditional VAE if none is named."""
    if isinstance(value, str):
        return {"kind": value}
    return {"kind": "cvae"} | value if isinstance(value, dict) else value


class FeatureSource(Protocol):
    """Whatever features of old classes can be had from."""

    def made(self, batch: Batch, task: Task, rows: int) -> tuple[Tensor, Tensor]:
        """Labels and features of old classes, as constants."""


def replay_term(
    source: FeatureSource,
    task: Task,
    head: LinearHead,
    support: Literal["seen", "old", "all"],
    rows: int | None,
    weight: float,
) -> Term:
    """The second line of Eq. (5): cross-entropy of the head on made features of old classes."""
    first, end = outputs_in(support, task)

    def compute(step: Step) -> Tensor:
        labels, features = source.made(step.batch, task, rows or step.batch.total)
        return cross_entropy(head(features), labels, first, end)

    return Term("replay", compute, weight)
