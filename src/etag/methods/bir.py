"""BI-R: brain-inspired replay (van de Ven et al., 2020), on the features of a frozen backbone.

One network classifies features and generates them. Features of old classes from its previous version are learned
again with the previous version's soft predictions; a share 1 / t of the loss is new at the t-th task.
"""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field, PositiveFloat

from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import OptimizerState, ParameterGroup, Phase, Plan
from etag.methods.base import Method, MethodInfo, MethodOptions
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.frozen_backbone import FrozenBackbone, FrozenBackboneOptions
from etag.methods.parts.internal_replay import ReplayNetworkOptions, ReplayObjective
from etag.methods.registry import method
from etag.models.answers import AnswerRule, HiddenLayersRule
from etag.models.initial import build
from etag.models.replay_network import ReplayNetwork
from etag.models.solver import Frozen


class BirOptions(MethodOptions):
    """Options of BI-R."""

    head_growths: ClassVar[tuple[str, ...]] = ("growing",)
    features: FrozenBackboneOptions = Field(FrozenBackboneOptions(), description="the frozen features")
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
class BIR(Method[BirOptions]):
    """Internal replay; the solver's head serves the base task only."""

    Options = BirOptions

    def build(self, stream: Stream) -> None:
        """Store the scale of the features, the network, and its optimizer state beside the solver."""
        super().build(stream)
        o, features = self.options.generator, self.solver.backbone.feature_size
        self.frozen = FrozenBackbone(self.options.features, features)
        self.network = build(
            lambda: ReplayNetwork(features, o.latent, o.hidden, o.silent), stream.generator("generator")
        )
        self.optimizer_state, self.old = OptimizerState(), None
        self.parts |= {
            "scale": self.frozen.scale,
            "generator": self.network,
            "optimizer_state": self.optimizer_state,
        }

    old: Frozen[ReplayNetwork] | None

    def check(self, task_sizes: Sequence[int]) -> None:
        """The features must come from somewhere."""
        super().check(task_sizes)
        self.frozen.check(self.context.model.weights, self.embedding is not None)

    def begin_task(self, task: Task) -> None:
        """Copy the previous network, which replays."""
        if task.index:
            self.old = Frozen(self.network)
        super().begin_task(task)

    def add_classes(self, classes: int) -> None:
        """Add classes to the network too."""
        super().add_classes(classes)
        self.network.grow(classes, self.stream("grow").generator("generator"))

    def new_outputs(self, classes: int) -> int:
        """The solver's head has the base classes only, and none if the backbone is not trained."""
        return self.frozen.head_outputs(classes, first=len(self.task_sizes) == 1)

    def phases(self, task: Task) -> Plan:
        """Train the backbone at the base task; then the network on cached features."""
        if self.frozen.trains(task):
            yield self.solver_phase(task, [self.cross_entropy(task)])
        found = yield self.features_pass("features", task.train, self.options.features.passes)
        features = self.frozen.scaled(task, CachedFeatures.of(found, len(task.train)))
        training = self.options.generator.train.for_task(task.index)
        objective = ReplayObjective(self.network, self.old, task, self.options.tau, self.options.kl_divisor)
        batches = features.batches(training, self.stream("generator"), self.context.placement)
        group = ParameterGroup(list(self.network.parameters()), optimizer_state=self.optimizer_state)
        yield Phase("generator", objective, batches, (group,), training)

    def answer_rule(self) -> AnswerRule:
        """The network's own head."""
        return HiddenLayersRule(self.frozen.scale, self.network.encoder, self.network.head)

    def remarks(self) -> dict[str, str]:
        """Where the features come from."""
        return {"features": self.frozen.remark(self.context.model.weights)}
