"""Re-balancing of a head on features of new images and on drawn features of old classes: the last phase of EFC++."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import nn

from etag.core.options import Options, Schedule, TrainOptions
from etag.core.random import Placement, Stream
from etag.core.scenario import Task
from etag.core.work import Batch, ParameterGroup, Phase, Terms
from etag.losses.drift import balanced_cross_entropy
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.gaussians import ClassGaussians
from etag.models.heads import LinearHead


class RebalanceTrainOptions(TrainOptions):
    """Training of the head in the re-balancing phase; the defaults are those of the authors' release."""

    epochs: PositiveInt = Field(50, description="number of epochs")
    batch_size: PositiveInt = Field(256, description="features per step, of old and new classes together")
    drop_last: bool = Field(False, description="skip the last batch of an epoch if it is smaller than the others")
    optimizer: Literal["adam", "sgd"] = Field("sgd", description="optimizer: adam or sgd (with momentum)")
    weight_decay: NonNegativeFloat = Field(5e-4, description="L2 penalty, added to the gradient")
    schedule: Schedule = Field("constant", description="learning rate")
    validation: Literal[0] = Field(0, description="not available: the head is trained on all features")


class RebalanceOptions(Options):
    """The phase that re-balances the head (EFC++)."""

    train: RebalanceTrainOptions = Field(RebalanceTrainOptions(), description="training of the head")
    feature_passes: PositiveInt = Field(
        10, description="augmented passes over the images whose features are cached; each epoch uses one, in turn"
    )

    def phase(
        self,
        task: Task,
        features: CachedFeatures,
        head: LinearHead,
        gaussians: ClassGaussians,
        stream: Stream,
        placement: Placement,
    ) -> Phase:
        """Train the head alone. In a batch of `train.batch_size` features, new and old classes have the shares of their
        numbers, so an epoch (one pass over the new features) has more steps the more old classes there are."""
        training, world = self.train.for_task(task.index), placement.world
        rows = world * max(1, round(training.batch_size / world * task.num_new / task.num_seen))
        batches = features.batches(training.model_copy(update={"batch_size": rows}), stream, placement)
        objective = RebalanceObjective(head, gaussians, task)
        return Phase("head", objective, batches, (ParameterGroup(list(head.parameters())),), training)


class RebalanceObjective(nn.Module):
    """Cross-entropy of the head over all classes; each class has the same weight."""

    def __init__(self, head: LinearHead, gaussians: ClassGaussians, task: Task) -> None:
        super().__init__()
        self.head, self._task = head, task
        self._replay = gaussians.replay  # not the module: DDP would send its tensors to every process at each step

    def forward(self, batch: Batch) -> Terms:
        """One term; `batch.inputs` are features of new classes."""
        task, world = self._task, batch.draws.placement.world
        rows = world * max(1, round(batch.total / world * task.num_old / task.num_new))
        labels, features = self._replay(batch, task, rows)
        new, old = self.head(batch.inputs), self.head(features)
        return {"ce": balanced_cross_entropy(new, batch.labels, old, labels, task.num_old / task.num_seen)}
