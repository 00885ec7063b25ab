"""Training the head alone: on more images of classes that are known already, or once more after a task."""

from torch import Tensor, nn

from etag.core.options import TrainOptions
from etag.core.random import Placement, Stream
from etag.core.scenario import Task
from etag.core.work import Batch, ParameterGroup, Phase, Terms
from etag.data.batches import FeatureBatches
from etag.losses.classification import cross_entropy
from etag.methods.parts.replay import FeatureSource
from etag.models.heads import LinearHead


class HeadObjective(nn.Module):
    """Cross-entropy of the head on real features, and on made ones of the classes known before."""

    def __init__(self, head: LinearHead, source: FeatureSource, task: Task, replay_weight: float) -> None:
        super().__init__()
        self.head, self._source, self._task, self._replay_weight = head, source, task, replay_weight

    def forward(self, batch: Batch) -> Terms:
        """Both in one step, equally many."""
        labels, made = self._source.made(batch, self._task, batch.total)
        return {
            "ce": cross_entropy(self.head(batch.inputs), batch.labels, 0, self._task.seen),
            "replay": self._replay_weight * cross_entropy(self.head(made), labels, 0, self._task.seen),
        }


def head_phase(
    head: LinearHead,
    source: FeatureSource,
    task: Task,
    passes: Tensor,
    labels: Tensor,
    training: TrainOptions,
    stream: Stream,
    placement: Placement,
    replay_weight: float,
) -> Phase:
    """Train the head alone, on cached features of the task's images."""
    batches = FeatureBatches(passes, labels, training.batch_size, stream, placement, drop_last=training.drop_last)
    objective = HeadObjective(head, source, task, replay_weight)
    return Phase("head", objective, batches, (ParameterGroup(list(head.parameters())),), training)
