"""BI-R: brain-inspired replay (van de Ven et al., 2020), on the features of a frozen backbone.

One network classifies features and makes them again. What its predecessor makes of old classes is learnt again with
the predecessor's soft answers, a share 1 / t of the loss being new at the t-th task.
"""

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from etag.core.options import Options, Schedule
from etag.core.outputs import Need, Outputs, Predictor, needed
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Batch, Moments, Phase, Plan, Player, Terms
from etag.data.batches import FeatureBatches
from etag.losses.classification import cross_entropy
from etag.losses.distillation import padded_distillation, padded_softmax
from etag.losses.generation import reparametrise, sampled_divergence, squared_error
from etag.methods.base import Card
from etag.methods.parts.frozen import FrozenFeatureMethod, FrozenFeatureOptions, Scale
from etag.methods.parts.replay import GeneratorTrainOptions
from etag.methods.registry import method
from etag.models.initial import build
from etag.models.replay_network import ReplayNetwork
from etag.models.solver import Frozen


class BirTrainOptions(GeneratorTrainOptions):
    """Adam 1e-4 throughout."""

    steps: PositiveInt | None = Field(5000, description="of each task")
    batch_size: PositiveInt = Field(256, description="new features per step, and as many that are replayed")
    schedule: Schedule = "constant"


class BirNetworkOptions(Options):
    """The network that classifies and replays."""

    latent: PositiveInt = 100
    hidden: PositiveInt = 2000
    silent: float = Field(0.7, ge=0, lt=1, description="share of the decoder's units that a class's gates silence")
    train: BirTrainOptions = BirTrainOptions()


class BirOptions(FrozenFeatureOptions):
    """BI-R's own options."""

    generator: BirNetworkOptions = BirNetworkOptions()
    tau: PositiveFloat = Field(2.0, description="temperature of the soft answers")
    kl_divisor: PositiveFloat | None = Field(
        None, description="of the divergence from the prior; None is the number of features, 3072 the release's"
    )


@method(
    "bir",
    Card(
        summary="one gated network classifies frozen features and replays them, with its former soft answers",
        source="van de Ven et al., 2020",
        stores="backbone, head of the base classes, network, its Adam state; a Gaussian, gates, a row per class",
        generator="its own decoder, with a Gaussian and gates per class",
    ),
)
class BIR(FrozenFeatureMethod):
    """Internal replay."""

    Options = BirOptions

    def build(self, stream: Stream) -> None:
        """The network too, and what its optimiser remembers from task to task."""
        super().build(stream)
        o, features = self.options.generator, self.solver.backbone.feature_size
        self.network = build(
            lambda: ReplayNetwork(features, o.latent, o.hidden, o.silent), stream.generator("generator")
        )
        self.moments, self.old = Moments(), None

    old: Frozen[ReplayNetwork] | None

    def begin_task(self, task: Task) -> None:
        """The old network is kept to replay."""
        if task.index:
            self.old = Frozen(self.network)
        super().begin_task(task)

    def grow(self, classes: int) -> None:
        """In the network too."""
        super().grow(classes)
        self.network.grow(classes, self.stream("grow").generator("generator"))

    def learn(self, task: Task, features: Tensor, labels: Tensor) -> Plan:
        """Everything in one phase."""
        training = self.options.generator.train.for_task(task.index)
        passes = features.view(self.options.feature_passes, len(task.train), -1)
        batches = FeatureBatches(
            passes,
            labels[: len(task.train)],
            training.batch_size,
            self.stream("generator"),
            self.context.placement,
            drop_last=training.drop_last,
        )
        players = (Player(list(self.network.parameters()), moments=self.moments),)
        objective = ReplayObjective(self.network, self.old, task, self.options)
        yield Phase("generator", objective, batches, players, training)

    def predictor(self) -> Predictor:
        """The network's answers."""
        return NetworkPredictor(self.scale, self.network)

    def parts(self) -> dict[str, nn.Module]:
        """The network too."""
        learning = {"moments": self.moments} if self.context.learns else {}
        return super().parts() | {"generator": self.network} | learning


class ReplayObjective(nn.Module):
    """Cross-entropy, reconstruction and divergence of new features; the same, with soft answers, of replayed ones."""

    def __init__(
        self, network: ReplayNetwork, old: Frozen[ReplayNetwork] | None, task: Task, options: BirOptions
    ) -> None:
        super().__init__()
        self.network, self.old = network, old
        self._task, self._options = task, options

    def forward(self, batch: Batch) -> Terms:
        """The weighted terms."""
        seen, new = self._task.seen, 1 / (self._task.index + 1)
        logits, terms = self._generation(batch, "new", batch.inputs, functional.one_hot(batch.labels, seen))
        terms = {"ce": cross_entropy(logits, batch.labels, 0, seen)} | terms
        weighted = {name: new * value for name, value in terms.items()}
        if self.old is not None:
            features, answers = self.replayed(batch)
            tau = self._options.tau
            logits, terms = self._generation(batch, "replayed", features, padded_softmax(answers / tau, seen))
            terms["kd"] = padded_distillation(logits[:, :seen], answers, tau)
            weighted |= {f"{name}_replayed": (1 - new) * value for name, value in terms.items()}
        return weighted

    @torch.no_grad()
    def replayed(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Features of old classes, and the old network's logits of them."""
        old, classes = needed(self.old).network, self._task.old
        labels = batch.draws.integers("replay labels", 0, classes, batch.total)
        codes = old.prior.codes(labels, batch.draws.normal("replay codes", batch.total, old.latent))
        features = old.decode(codes, functional.one_hot(labels, classes).to(codes))
        return features, old.classify(features)[:, :classes]

    def _generation(self, batch: Batch, which: str, features: Tensor, shares: Tensor) -> tuple[Tensor, Terms]:
        """Logits of features, and what making them again costs; `shares` are those of their classes."""
        network, shares = self.network, shares.to(features)
        hidden = network.encoder(features)
        mean, log_variance = network.mean(hidden), network.log_variance(hidden)
        noise = batch.draws.normal(f"{which} posterior", batch.total, network.latent)
        codes = reparametrise(mean, log_variance, noise)
        divergence = sampled_divergence(noise, log_variance, network.prior.log_density(codes, shares))
        recon = squared_error(network.decode(codes, shares), features) / network.features
        return network.head(hidden), {
            "recon": recon,
            "kl": divergence / (self._options.kl_divisor or network.features),
        }


class NetworkPredictor(nn.Module):
    """Softmax of what a network says of scaled features."""

    need, probabilities = Need.FEATURE, True

    def __init__(self, scale: Scale, network: ReplayNetwork) -> None:
        super().__init__()
        self.scale, self.network = scale, network

    def forward(self, outputs: Outputs) -> Tensor:
        """Probabilities, one row an image."""
        return self.network.classify(self.scale(needed(outputs.feature))).softmax(1)
