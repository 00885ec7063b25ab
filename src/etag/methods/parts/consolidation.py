"""EFC's empirical feature matrix: how much the outputs depend on each direction of the feature."""

import torch
from torch import Tensor

from etag.core.work import Term
from etag.losses.drift import consolidation_penalty, empirical_feature_matrix
from etag.methods.parts.distillation import features_term
from etag.models.heads import LinearHead
from etag.models.modules import StoredTensors


class FeatureMatrix(StoredTensors):
    """The matrix E of the latest task: its images, and the outputs of all classes seen after it."""

    values: Tensor  # (feature, feature)

    def __init__(self, size: int) -> None:
        super().__init__()
        self.store(values=torch.zeros(size, size))

    @torch.no_grad()
    def measure(self, head: LinearHead, features: Tensor, classes: int) -> None:
        """Replace the matrix by that of these features and of the head's first `classes` outputs."""
        features = features.float()
        self.store(values=empirical_feature_matrix(head(features)[:, :classes], head.weight[:classes]))

    def penalty(self, weight: float, damping: float) -> Term:
        """The penalty on moving away from the features of the previous task."""

        def distance(student: Tensor, teacher: Tensor) -> Tensor:
            return consolidation_penalty(student, teacher, self.values, weight, damping)

        return features_term("efm", distance, 1.0 if weight or damping else 0.0)
