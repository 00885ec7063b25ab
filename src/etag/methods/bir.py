"""BI-R: brain-inspired replay (van de Ven et al., 2020), on the features of a frozen backbone.

One network classifies features and generates them. Features of old classes from its previous version are learned
again with the previous version's soft predictions; a share 1 / t of the loss is new at the t-th task.
"""

from pydantic import Field, PositiveFloat

from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import OptimizerState, ParameterGroup, Phase, Plan
from etag.methods.base import MethodInfo
from etag.methods.frozen_features import FrozenFeatureMethod, FrozenFeatureMethodOptions
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.internal_replay import ReplayNetworkOptions, ReplayObjective
from etag.methods.registry import method
from etag.models.answers import AnswerRule, HiddenLayersRule
from etag.models.initial import build
from etag.models.replay_network import ReplayNetwork
from etag.models.solver import Frozen


class BirOptions(FrozenFeatureMethodOptions):
    """Options of BI-R."""

    generator: ReplayNetworkOptions = Field(ReplayNetworkOptions(), description="the network")
    tau: PositiveFloat = Field(2.0, description="temperature of the soft predictions")
    kl_divisor: PositiveFloat | None = Field(
        None,
        description="divisor of the divergence from the prior; None: number of features; release: 3072",
    )


@method(
    "bir",
    MethodInfo(
        title="BI-R",
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
        o, features = self.options.generator, self.solver.backbone.feature_size
        self.network = build(
            lambda: ReplayNetwork(features, o.latent, o.hidden, o.silent), stream.generator("generator")
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
        self.network.grow(classes, self.stream("grow").generator("generator"))

    def learn_features(self, task: Task, features: CachedFeatures) -> Plan:
        """Train the network on new and replayed features."""
        training = self.options.generator.train.for_task(task.index)
        objective = ReplayObjective(self.network, self.old, task, self.options.tau, self.options.kl_divisor)
        batches = features.batches(training, self.stream("generator"), self.context.placement)
        group = ParameterGroup(list(self.network.parameters()), optimizer_state=self.optimizer_state)
        yield Phase("generator", objective, batches, (group,), training)

    def answer_rule(self) -> AnswerRule:
        """The network's own head."""
        return HiddenLayersRule(self.scale, self.network.encoder, self.network.head)
