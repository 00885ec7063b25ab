"""BI-R: brain-inspired replay (van de Ven et al., 2020), on the features of a frozen backbone.

One network classifies features and makes them again. What its predecessor makes of old classes is learned again with
the predecessor's soft answers, a share 1 / t of the loss being new at the t-th task.
"""

from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from etag.core.outputs import Predictor
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import OptimizerState, ParameterGroup, Phase, Plan
from etag.data.batches import FeatureBatches
from etag.methods.base import MethodInfo
from etag.methods.parts.frozen import FrozenFeatureMethod, FrozenFeatureOptions
from etag.methods.parts.internal_replay import ReplayNetworkOptions, ReplayObjective
from etag.methods.registry import method
from etag.models.initial import build
from etag.models.predictors import NetworkPredictor
from etag.models.replay_network import ReplayNetwork
from etag.models.solver import Frozen


class BirOptions(FrozenFeatureOptions):
    """BI-R's own options."""

    generator: ReplayNetworkOptions = ReplayNetworkOptions()
    tau: PositiveFloat = Field(2.0, description="temperature of the soft answers")
    kl_divisor: PositiveFloat | None = Field(
        None, description="of the divergence from the prior; None is the number of features, 3072 the release's"
    )


@method(
    "bir",
    MethodInfo(
        title="BI-R",
        color="#009E73",
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
        """The network too, and what its optimizer remembers from task to task."""
        super().build(stream)
        o, features = self.options.generator, self.solver.backbone.feature_size
        self.network = build(
            lambda: ReplayNetwork(features, o.latent, o.hidden, o.silent), stream.generator("generator")
        )
        self.optimizer_state, self.old = OptimizerState(), None

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
        groups = (ParameterGroup(list(self.network.parameters()), optimizer_state=self.optimizer_state),)
        objective = ReplayObjective(self.network, self.old, task, self.options.tau, self.options.kl_divisor)
        yield Phase("generator", objective, batches, groups, training)

    def predictor(self) -> Predictor:
        """The network's answers."""
        return NetworkPredictor(self.scale, self.network)

    def parts(self) -> dict[str, nn.Module]:
        """The network too."""
        learning = {"moments": self.optimizer_state} if self.context.learns else {}
        return super().parts() | {"generator": self.network} | learning
