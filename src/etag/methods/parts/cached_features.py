"""Features of a task's images, computed once and used for many epochs."""

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from etag.core.options import TrainOptions
from etag.core.random import Placement, Stream
from etag.data.batches import FeatureBatches


@dataclass(frozen=True)
class CachedFeatures:
    """The result of `features_pass`: features of the same images, once for each pass over them."""

    features: Tensor  # (passes, images, feature)
    labels: Tensor  # (images,)

    @classmethod
    def from_pass(cls, result: dict[str, Tensor], images: int) -> Self:
        """From the rows of all passes, one pass after another."""
        features = result["features"]
        return cls(features.view(-1, images, features.shape[1]), result["labels"][:images])

    @property
    def all_features(self) -> Tensor:
        """The features of all passes, one row each."""
        return self.features.flatten(0, 1)

    @property
    def all_labels(self) -> Tensor:
        """The labels of `all_features`."""
        return self.labels.repeat(len(self.features))

    def batches(self, training: TrainOptions, stream: Stream, placement: Placement) -> FeatureBatches:
        """Shuffled batches; training epoch e uses pass e modulo the number of passes."""
        return FeatureBatches(
            self.features, self.labels, training.batch_size, stream, placement, drop_last=training.drop_last
        )
