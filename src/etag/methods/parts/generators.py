"""Generators of features of old classes: their common interface and options.

`generator.kind` chooses one: the paper's conditional VAE, GFR's Wasserstein GAN, or class means.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from etag.core.errors import EtagError
from etag.core.options import Options, TrainOptions
from etag.core.outputs import require
from etag.core.random import Placement, Stream
from etag.core.scenario import Task
from etag.core.work import Batch, ParameterGroup, Phase, Plan, StepData, Term, Terms
from etag.losses.classification import cross_entropy
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.classification import Scope, output_range
from etag.methods.parts.drift import PassBatches
from etag.models.cvae import ConditionalVAE
from etag.models.heads import LinearHead
from etag.models.initial import build
from etag.models.solver import Frozen, Solver, Teacher
from etag.models.wgan import ConditionalWGAN

NormalSampler = Callable[[str, int], Tensor]  # (purpose, columns) -> standard normal draws


def normal_sampler(stream: Stream, rows: int, device: torch.device) -> NormalSampler:
    """Draws of `rows` rows from a stream, by purpose."""
    return lambda purpose, size: torch.randn(rows, size, generator=stream.torch_generator(purpose)).to(device)


class GeneratorTrainOptions(TrainOptions):
    """Training of a generator: Adam with learning rate 1e-4, no weight decay."""

    lr: PositiveFloat = Field(1e-4, description="learning rate; the peak for `onecycle`")
    weight_decay: NonNegativeFloat = Field(0.0, description="L2 penalty")
    validation: Literal[0] = Field(0, description="not available: a generator is trained on all features")


class NetworkOptions(Options):
    """Options of generators that are neural networks."""

    latent: PositiveInt = Field(200, description="size of the latent code")
    hidden: PositiveInt = Field(512, description="width of the hidden layers")
    train: GeneratorTrainOptions = Field(GeneratorTrainOptions(), description="training of the generator")
    feature_passes: PositiveInt = Field(
        10, description="augmented passes over the images whose features are cached; each epoch uses one, in turn"
    )
    last_task: bool = Field(True, description="train the generator in the last task too (Algorithm 1)")
    standardize: bool = Field(
        False,
        description="train on features that are standardized by their mean and deviation in the base task; generated "
        "features are mapped back. For pre-trained backbones, whose features differ widely in scale",
    )

    def check_vectors(self, pixels: bool) -> None:
        """Raise an error if images are to be generated with an option that is for features."""
        if pixels and self.standardize:
            raise EtagError("generator.standardize is for features, not for images: leave it out.")


class FeatureGenerator(ABC):
    """Generates features of old classes and learns those of new ones. A method holds one and stores its network."""

    role: ClassVar[str] = "generator"  # what its network is called among a method's parts
    augmented_passes: int  # over the task's images, to learn from; 0 means a single pass without augmentation
    network: nn.Module

    def begin_task(self, task: Task) -> None:  # noqa: B027 (only generators with a network copy it)
        """Before new classes are added: copy what must be remembered of the old ones."""

    @abstractmethod
    def add_classes(self, classes: int, stream: Stream) -> None:
        """Add rows for new classes."""

    def remove_class(self, label: int) -> None:  # noqa: ARG002
        """Forget a class; the labels after it move down by one."""
        raise EtagError("a generator of this kind cannot forget a class: choose kind=cvae.")

    def replay(self, batch: Batch, task: Task, rows: int) -> tuple[Tensor, Tensor]:
        """Labels drawn uniformly from the old classes, and one generated feature for each, without gradient. `rows` is
        the number for the global batch; the result is this process's share."""
        labels = batch.draws.integers("replay labels", 0, task.num_old, rows)
        return labels, self.replayed(labels, batch, rows)

    @abstractmethod
    def replayed(self, labels: Tensor, batch: Batch, rows: int) -> Tensor:
        """One generated feature of each of these old classes, without gradient; `labels` are this process's share of
        `rows`."""

    def sample(self, labels: Tensor, normal: NormalSampler) -> Tensor | None:  # noqa: ARG002
        """Features of these classes from the current network; None where all samples of a class are the same."""
        return None

    def follow(self, task: Task, teacher: Teacher | None, solver: Solver, batches: PassBatches, stream: Stream) -> Plan:  # noqa: ARG002
        """After the solver has learned a task: adapt what is stored of old features to the new backbone. A network
        learns old and new features together later, and does nothing here."""
        yield from ()

    @abstractmethod
    def learn(
        self, task: Task, features: CachedFeatures, weights: dict[str, float], head: nn.Module, stream: Stream
    ) -> Plan:
        """Learn the task's features; `weights` are those of Eqs. (6) and (10), `head` is the solver's, which this phase
        does not train."""

    @property
    def update_training(self) -> TrainOptions:
        """How head and generator are trained on more images of known classes; an error where they cannot be."""
        raise EtagError("a generator of this kind cannot learn more images of known classes: choose kind=cvae.")

    @property
    def trains_in_last_task(self) -> bool:
        """Whether the last task trains it too."""
        return True

    def trains_in(self, task: Task, classes: int) -> bool:
        """Whether the generator is trained in this task. `classes` is the number of classes of the whole scenario: the
        last task reaches it."""
        return self.trains_in_last_task or task.num_seen < classes


OptionsT = TypeVar("OptionsT", bound=NetworkOptions)
N = TypeVar("N", ConditionalVAE, ConditionalWGAN)


class NetworkGenerator(FeatureGenerator, Generic[OptionsT, N]):
    """A generator that is a neural network trained on cached features; `old` is the network of the previous task."""

    network: N

    def __init__(self, options: OptionsT, create: Callable[[], N], stream: Stream, placement: Placement) -> None:
        self.options, self._placement, self.augmented_passes = options, placement, options.feature_passes
        self.network = build(create, stream.torch_generator("generator"))
        self.old: Frozen[N] | None = None

    def begin_task(self, task: Task) -> None:
        """Copy the network of the previous task."""
        if task.index:
            self.old = Frozen(self.network)

    def add_classes(self, classes: int, stream: Stream) -> None:
        """Add rows for new classes."""
        self.network.grow(classes, stream.torch_generator("generator"))

    @torch.no_grad()
    def replayed(self, labels: Tensor, batch: Batch, rows: int) -> Tensor:
        """Features of old classes from the previous task's network."""
        old = require(self.old).network
        return self.generate(old, labels, lambda purpose, size: batch.draws.normal(purpose, rows, size))

    def sample(self, labels: Tensor, normal: NormalSampler) -> Tensor:
        """Features of these classes from the current network."""
        return self.generate(self.network, labels, normal)

    def generate(self, network: N, labels: Tensor, normal: NormalSampler) -> Tensor:
        """Features of these classes from `network`: codes are drawn from the prior and decoded."""
        return network.decode(normal("replay codes", network.latent), labels)

    @abstractmethod
    def objective(self, task: Task, head: nn.Module, weights: dict[str, float]) -> nn.Module:
        """The module whose forward(batch) returns the loss terms; the inputs of a batch are features."""

    def groups(self) -> tuple[ParameterGroup, ...]:
        """The parameters that its training updates."""
        return (ParameterGroup(list(self.network.parameters())),)

    def phase(
        self, task: Task, features: CachedFeatures, weights: dict[str, float], head: nn.Module, stream: Stream
    ) -> Phase:
        """Its training on the task's features."""
        training = self.options.train.for_task(task.index)
        batches = features.batches(training, stream, self._placement)
        return Phase("generator", self.objective(task, head, weights), batches, self.groups(), training)

    def learn(
        self, task: Task, features: CachedFeatures, weights: dict[str, float], head: nn.Module, stream: Stream
    ) -> Plan:
        """One training phase. The base task's features give the scale of all."""
        if task.index == 0 and self.network.scale is not None:
            self.network.scale.fit(features.all_features)
        yield self.phase(task, features, weights, head, stream.child("generator"))

    @property
    def trains_in_last_task(self) -> bool:
        """The option `last_task`."""
        return self.options.last_task


def replay_term(generator: FeatureGenerator, task: Task, head: LinearHead, scope: Scope, weight: float) -> Term:
    """Eq. (5), second line: the head's cross-entropy on as many generated features as the batch has images."""
    first, end = output_range(scope, task)

    def compute(step: StepData) -> Tensor:
        labels, features = generator.replay(step.batch, task, step.batch.total)
        return cross_entropy(head(features), labels, first, end)

    return Term("replay", compute, weight)


class HeadObjective(nn.Module):
    """Cross-entropy of the head on real features, and on equally many generated features of the `replayed` classes, if
    there are any. `weights` are those of the two."""

    def __init__(
        self, head: LinearHead, generator: FeatureGenerator, seen: int, replayed: Tensor, weights: tuple[float, float]
    ) -> None:
        super().__init__()
        self.head, self._generator, self._seen = head, generator, seen
        self._replayed, self._weights = replayed, weights

    def forward(self, batch: Batch) -> Terms:
        """Both terms, weighted."""
        real, generated = self._weights
        terms = {"ce": real * cross_entropy(self.head(batch.inputs), batch.labels, 0, self._seen)}
        if len(self._replayed):
            labels = self._replayed[batch.draws.integers("replay labels", 0, len(self._replayed), batch.total)]
            features = self._generator.replayed(labels, batch, batch.total)
            terms["replay"] = generated * cross_entropy(self.head(features), labels, 0, self._seen)
        return terms


def options_by_kind(default: str) -> Callable[[Any], Any]:
    """A validator that accepts a kind alone in place of its options, and takes options without a kind for `default`."""

    def complete(value: Any) -> Any:
        if isinstance(value, str):
            return {"kind": value}
        return {"kind": default} | value if isinstance(value, dict) else value

    return complete
