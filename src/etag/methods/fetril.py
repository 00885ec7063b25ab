"""FeTrIL: features of an old class are those of a similar new class, moved to its mean (Petit et al., 2023)."""

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from etag.core.options import TrainOptions
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Batch, ParameterGroup, Phase, Plan, Terms
from etag.losses.classification import cross_entropy
from etag.methods.base import Method, MethodInfo
from etag.methods.frozen_backbone import FrozenBackboneMethod, FrozenBackboneOptions
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.prototypes import Prototypes
from etag.methods.registry import method
from etag.models.heads import LinearHead


class FetrilOptions(FrozenBackboneOptions):
    """Options of FeTrIL."""

    head_train: TrainOptions = Field(
        TrainOptions(epochs=50, schedule="cosine", drop_last=False), description="training of the head on features"
    )


class TranslatedFeatures(nn.Module):
    """Cross-entropy of the head on features of new classes and on features of old ones, in which each class has the
    same weight. A feature of class o is one of class n, f - m_n + m_o, where m_n is the new mean nearest to m_o."""

    def __init__(self, head: LinearHead, means: Tensor, cached: CachedFeatures, task: Task) -> None:
        super().__init__()
        self.head, self._means, self._task = head, means, task
        cosines = functional.normalize(means[: task.num_old]) @ functional.normalize(means[task.num_old :]).T
        self._nearest = cosines.argmax(1) if task.num_old else None  # new class, counted from 0
        labels = cached.all_labels - task.num_old
        self._features = cached.all_features[labels.argsort(stable=True)]  # class by class
        self._count = labels.bincount(minlength=task.num_new)

    def forward(self, batch: Batch) -> Terms:
        """Both terms; their weights are the shares of new and old classes."""
        task, seen = self._task, self._task.num_seen
        new = cross_entropy(self.head(batch.inputs), batch.labels, 0, seen)
        if self._nearest is None:
            return {"ce": new}
        labels = batch.draws.integers("old labels", 0, task.num_old, batch.total)
        nearest, draw = self._nearest[labels], batch.draws.uniform("rows", batch.total)
        first = self._count.cumsum(0) - self._count
        rows = first[nearest] + (draw * self._count[nearest]).long()
        moved = self._features[rows] - self._means[nearest + task.num_old] + self._means[labels]
        old = cross_entropy(self.head(moved), labels, 0, seen)
        return {"ce": task.num_new / seen * new, "old": task.num_old / seen * old}


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

    def build(self, stream: Stream) -> None:
        """Store the means beside the solver."""
        super().build(stream)
        self.parts["prototypes"] = self.prototypes = Prototypes(self.solver.backbone.feature_size)

    def new_head_classes(self, classes: int) -> int:
        """The head has all classes."""
        return Method.new_head_classes(self, classes)

    def learn_task(self, task: Task) -> Plan:
        """Store the means of the task's classes; train the head."""
        cached = CachedFeatures.from_pass((yield self.features_pass("features", task.train)), len(task.train))
        self.prototypes.add_task(task, cached.all_features, cached.all_labels)
        head, training = self.solver.head, self.options.head_train.for_task(task.index)
        objective = TranslatedFeatures(head, self.prototypes.means, cached, task)
        batches = cached.batches(training, self.stream("head"), self.context.placement)
        yield Phase("head", objective, batches, (ParameterGroup(list(head.parameters())),), training)
