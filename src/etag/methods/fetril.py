"""FeTrIL: features of an old class are those of a similar new class, moved to its mean (Petit et al., 2023)."""

from pydantic import Field
from torch import Tensor, nn

from etag.core.options import TrainOptions
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Batch, ParameterGroup, Phase, Plan, Terms
from etag.losses.classification import cross_entropy
from etag.methods.base import MethodInfo
from etag.methods.frozen_backbone import FrozenBackboneMethod, FrozenBackboneOptions
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.prototypes import Prototypes
from etag.methods.registry import method


class FetrilOptions(FrozenBackboneOptions):
    """Options of FeTrIL."""

    head_train: TrainOptions = Field(TrainOptions(epochs=50, schedule="cosine", drop_last=False), description="head")


class TranslatedFeatures(nn.Module):
    """Cross-entropy of the head on features of new classes and on features of old ones, in which each class has the
    same weight. A feature of class o is one of class n, f - m_n + m_o, where m_n is the new mean nearest to m_o."""

    def __init__(self, head: nn.Module, means: Tensor, cached: CachedFeatures, task: Task) -> None:
        super().__init__()
        self.head, self._task, old, unit = head, task, task.num_old, nn.functional.normalize(means)
        self._nearest = (unit[:old] @ unit[old:].T).argmax(1)  # for each old class a new one, counted from 0
        self._shift = means[:old] - means[old:][self._nearest]
        labels = cached.all_labels - task.num_old
        self._features = cached.all_features[labels.argsort(stable=True)]  # class by class
        self._count = labels.bincount(minlength=task.num_new)

    def forward(self, batch: Batch) -> Terms:
        """Both terms; their weights are the shares of new and old classes."""
        task, draws, share = self._task, batch.draws, self._task.num_new / self._task.num_seen
        new = cross_entropy(self.head(batch.inputs), batch.labels, 0, task.num_seen)
        if task.index == 0:
            return {"ce": new}
        labels = draws.integers("old labels", 0, task.num_old, batch.total)
        nearest = self._nearest[labels]
        rows = self._count.cumsum(0)[nearest] - 1 - (draws.uniform("rows", batch.total) * self._count[nearest]).long()
        old = cross_entropy(self.head(self._features[rows] + self._shift[labels]), labels, 0, task.num_seen)
        return {"ce": share * new, "old": (1 - share) * old}


@method(
    "fetril",
    MethodInfo(
        title="FeTrIL",
        color="#E69F00",
        summary="a linear head on new features, and on new features moved to the means of old classes; frozen backbone",
        source="Petit et al., 2023",
        stores="backbone; one mean and one row of the head per class",
    ),
)
class FeTrIL(FrozenBackboneMethod[FetrilOptions]):
    """One mean per class is all that is stored of old classes; the shape of their clouds is borrowed from new ones."""

    Options = FetrilOptions
    has_e_variant = False
    head_for_all_classes = True

    def build(self, stream: Stream) -> None:
        """Store the means beside the solver."""
        super().build(stream)
        self.parts["prototypes"] = self.prototypes = Prototypes(self.solver.backbone.feature_size)

    def learn_task(self, task: Task) -> Plan:
        """Store the means of the task's classes; train the head."""
        cached = CachedFeatures.from_pass((yield self.features_pass("features", task.train)), len(task.train))
        self.prototypes.add_task(task, cached.all_features, cached.all_labels)
        head, training = self.solver.head, self.options.head_train.for_task(task.index)
        objective = TranslatedFeatures(head, self.prototypes.means, cached, task)
        batches = cached.batches(training, self.stream("head"), self.context.placement)
        yield Phase("head", objective, batches, (ParameterGroup(list(head.parameters())),), training)
