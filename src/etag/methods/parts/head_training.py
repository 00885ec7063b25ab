"""Training the head alone on cached features: after a task, or on more images of known classes."""

from torch import nn

from etag.core.options import TrainOptions
from etag.core.random import Placement, Stream
from etag.core.scenario import Task
from etag.core.work import Batch, ParameterGroup, Phase, Terms
from etag.losses.classification import cross_entropy
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.generators import FeatureGenerator
from etag.models.heads import LinearHead


class HeadObjective(nn.Module):
    """Cross-entropy of the head on real features and on equally many generated features of old classes."""

    def __init__(self, head: LinearHead, generator: FeatureGenerator, task: Task, replay_weight: float) -> None:
        super().__init__()
        self.head, self._generator, self._task, self._replay_weight = head, generator, task, replay_weight

    def forward(self, batch: Batch) -> Terms:
        """Both terms, weighted."""
        labels, features = self._generator.replay(batch, self._task, batch.total)
        return {
            "ce": cross_entropy(self.head(batch.inputs), batch.labels, 0, self._task.num_seen),
            "replay": self._replay_weight * cross_entropy(self.head(features), labels, 0, self._task.num_seen),
        }


def head_phase(
    head: LinearHead,
    generator: FeatureGenerator,
    task: Task,
    features: CachedFeatures,
    training: TrainOptions,
    replay_weight: float,
    stream: Stream,
    placement: Placement,
) -> Phase:
    """Train the head alone on cached features of the task's images and on generated ones."""
    training = training.for_task(task.index)
    objective = HeadObjective(head, generator, task, replay_weight)
    batches = features.batches(training, stream, placement)
    return Phase("head", objective, batches, (ParameterGroup(list(head.parameters())),), training)
