"""BI-R: brain-inspired replay (van de Ven et al., 2020), on the features of a frozen backbone.

One network classifies features and generates them. Features of old classes from its previous version are learned
again with the previous version's soft predictions; at the t-th task new data have the weight 1 / t.
"""

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from etag.core.options import Options, Schedule
from etag.core.outputs import require
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Batch, OptimizerState, ParameterGroup, Phase, Plan, Terms
from etag.losses.classification import cross_entropy
from etag.losses.distillation import padded_distillation, padded_softmax
from etag.losses.generation import reparameterize, sampled_divergence, squared_error
from etag.methods.base import MethodInfo
from etag.methods.frozen_features import FrozenFeatureMethod, FrozenFeatureMethodOptions
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.generators import GeneratorTrainOptions
from etag.methods.registry import method
from etag.models.initial import build
from etag.models.prediction import HiddenLayersRule, PredictionRule
from etag.models.replay_network import ReplayNetwork
from etag.models.solver import Frozen


class ReplayNetworkTrainOptions(GeneratorTrainOptions):
    """Adam with a constant learning rate of 1e-4."""

    steps: PositiveInt | None = Field(5000, description="optimizer steps per task")
    batch_size: PositiveInt = Field(256, description="new features per step, and as many replayed ones")
    schedule: Schedule = Field("constant", description="learning-rate schedule")


class ReplayNetworkOptions(Options):
    """The network that classifies and replays."""

    latent: PositiveInt = Field(100, description="size of the latent code")
    hidden: PositiveInt = Field(2000, description="width of the hidden layers")
    silent: float = Field(0.7, ge=0, lt=1, description="share of the decoder's units that a class's gates turn off")
    train: ReplayNetworkTrainOptions = Field(ReplayNetworkTrainOptions(), description="training of the network")


class ReplayObjective(nn.Module):
    """Cross-entropy, reconstruction and divergence on new features; the same with soft targets on replayed ones."""

    def __init__(
        self,
        network: ReplayNetwork,
        old: Frozen[ReplayNetwork] | None,
        task: Task,
        tau: float,
        kl_divisor: float | None,
    ) -> None:
        super().__init__()
        self.network, self.old = network, old
        self._task, self._tau = task, tau
        self._kl_divisor = kl_divisor or network.features

    def forward(self, batch: Batch) -> Terms:
        """The weighted terms."""
        seen, new = self._task.num_seen, 1 / (self._task.index + 1)
        logits, terms = self._generation(batch, "new", batch.inputs, functional.one_hot(batch.labels, seen))
        terms = {"ce": cross_entropy(logits, batch.labels, 0, seen)} | terms
        weighted = {name: new * value for name, value in terms.items()}
        if self.old is not None:
            features, old_logits = self.replayed(batch)
            tau = self._tau
            logits, terms = self._generation(batch, "replayed", features, padded_softmax(old_logits / tau, seen))
            terms["kd"] = padded_distillation(logits[:, :seen], old_logits, tau)
            weighted |= {f"{name}_replayed": (1 - new) * value for name, value in terms.items()}
        return weighted

    @torch.no_grad()
    def replayed(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Generated features of old classes, and the old network's logits for them."""
        old, classes = require(self.old).network, self._task.num_old
        labels = batch.draws.integers("replay labels", 0, classes, batch.total)
        codes = old.prior.codes(labels, batch.draws.normal("replay codes", batch.total, old.latent))
        features = old.decode(codes, functional.one_hot(labels, classes).to(codes))
        return features, old.classify(features)[:, :classes]

    def _generation(
        self, batch: Batch, which: str, features: Tensor, class_probabilities: Tensor
    ) -> tuple[Tensor, Terms]:
        """Logits of features, and the terms of reconstructing them; `shares` are class probabilities, row by row."""
        network, class_probabilities = self.network, class_probabilities.to(features)
        hidden = network.encoder(features)
        mean, log_variance = network.mean(hidden), network.log_variance(hidden)
        noise = batch.draws.normal(f"{which} posterior", batch.total, network.latent)
        codes = reparameterize(mean, log_variance, noise)
        divergence = sampled_divergence(noise, log_variance, network.prior.log_density(codes, class_probabilities))
        recon = squared_error(network.decode(codes, class_probabilities), features) / network.features
        return network.head(hidden), {"recon": recon, "kl": divergence / self._kl_divisor}


class BirOptions(FrozenFeatureMethodOptions):
    """Options of BI-R."""

    generator: ReplayNetworkOptions = Field(
        ReplayNetworkOptions(), description="the network that classifies and replays features"
    )
    tau: PositiveFloat = Field(2.0, description="temperature of the soft predictions")
    kl_divisor: PositiveFloat | None = Field(
        None, description="divisor of the KL term; null: number of features; release: 3072"
    )


@method(
    "bir",
    MethodInfo(
        title="BI-R",
        color="#009E73",
        summary="one gated network classifies frozen features and replays them with its earlier soft predictions",
        source="van de Ven et al., 2020",
        stores="backbone, head of the base classes, network, its Adam state; one Gaussian, gates and row per class",
        generator="its own decoder, with a Gaussian and gates per class",
    ),
)
class BIR(FrozenFeatureMethod[BirOptions]):
    """Internal replay: the network replays features, not images."""

    Options = BirOptions

    def build(self, stream: Stream) -> None:
        """Store the network and its optimizer state too."""
        super().build(stream)
        o, features = self.options.generator, self.solver.backbone.output_size
        self.network = build(
            lambda: ReplayNetwork(features, o.latent, o.hidden, o.silent), stream.torch_generator("generator")
        )
        self.optimizer_state, self.old = OptimizerState(), None
        self.parts |= {"generator": self.network, "optimizer_state": self.optimizer_state}

    old: Frozen[ReplayNetwork] | None

    def begin_task(self, task: Task) -> None:
        """Copy the previous network, which replays."""
        if task.index:
            self.old = Frozen(self.network)
        super().begin_task(task)

    def add_classes(self, classes: int) -> None:
        """Add classes to the network too."""
        super().add_classes(classes)
        self.network.grow(classes, self.stream("grow").torch_generator("generator"))

    def learn_features(self, task: Task, features: CachedFeatures) -> Plan:
        """Train the network on new and replayed features."""
        training = self.options.generator.train.for_task(task.index)
        objective = ReplayObjective(self.network, self.old, task, self.options.tau, self.options.kl_divisor)
        batches = features.batches(training, self.stream("generator"), self.context.placement)
        group = ParameterGroup(list(self.network.parameters()), optimizer_state=self.optimizer_state)
        yield Phase("generator", objective, batches, (group,), training)

    def prediction_rule(self) -> PredictionRule:
        """The network's own head."""
        return HiddenLayersRule(self.scale, self.network.encoder, self.network.head)
