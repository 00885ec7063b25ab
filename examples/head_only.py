"""A head trained alone: the backbone is frozen after the base task; old classes are replayed as means with noise.

etag run --plugin examples/head_only.py --method head --set train.epochs=5
"""

from pydantic import Field, NonNegativeFloat
from torch import Tensor, nn

from etag.core.options import TrainOptions
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Batch, ParameterGroup, Phase, Plan, Terms
from etag.losses.classification import cross_entropy
from etag.methods.base import Method, MethodInfo, MethodOptions
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.prototypes import Prototypes
from etag.methods.registry import method


class HeadLoss(nn.Module):
    """The module of a phase: everything that enters the loss is computed in its forward."""

    def __init__(self, head: nn.Module, prototypes: Prototypes, task: Task, weight: float) -> None:
        super().__init__()
        self.head, self.prototypes, self.task, self.weight = head, prototypes, task, weight

    def forward(self, batch: Batch) -> Terms:
        """The named and weighted loss terms; `batch.inputs` are features, because the phase is given such batches."""
        labels, features = self.prototypes.replay(batch, self.task, batch.total, noise=True)
        return {
            "ce": cross_entropy(self.head(batch.inputs), batch.labels, 0, self.task.num_seen),
            "replay": self.weight * cross_entropy(self.head(features), labels, 0, self.task.num_seen),
        }


class HeadOnlyOptions(MethodOptions):
    """Options of the example."""

    replay: NonNegativeFloat | None = Field(None, description="weight of old classes; None is m_old / m_new")
    passes: int = Field(5, ge=1, description="augmented passes over the images whose features are cached")
    fit: TrainOptions = Field(
        TrainOptions(steps=300, batch_size=64, lr=1e-2, schedule="cosine"), description="training of the head"
    )


INFO = MethodInfo(
    title="Head only",
    summary="a frozen backbone; the head is trained on new features and on noisy means of old classes",
    source="an example",
    stores="solver; one mean feature and one row of the head per class",
)


@method("head", INFO)
class HeadOnly(Method[HeadOnlyOptions]):
    """The whole solver at the base task, its head alone after it."""

    Options = HeadOnlyOptions

    def build(self, stream: Stream) -> None:
        """Store prototypes beside the solver."""
        super().build(stream)
        self.parts["prototypes"] = self.prototypes = Prototypes(self.solver.backbone.feature_size)

    def phases(self, task: Task) -> Plan:
        """Train; compute the features of the task's images once; store their means."""
        if task.index == 0:
            yield self.solver_phase(task, [self.cross_entropy(task)])
        found: dict[str, Tensor] = yield self.features_pass("features", task.train, self.options.passes)
        features = CachedFeatures.from_pass(found, len(task.train))
        if task.index:
            yield self.head_phase(task, features)
        self.prototypes.add_task(task, features.all_features, features.all_labels)

    def head_phase(self, task: Task, features: CachedFeatures) -> Phase:
        """One parameter group, the head's: parameters in no group are frozen."""
        o, head = self.options, self.solver.head
        weight = task.num_old / task.num_new if o.replay is None else o.replay
        training = o.fit.for_task(task.index)
        batches = features.batches(training, self.stream("head"), self.context.placement)
        group = ParameterGroup(list(head.parameters()))
        return Phase("head", HeadLoss(head, self.prototypes, task, weight), batches, (group,), training)
