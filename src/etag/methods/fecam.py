"""FeCAM: Mahalanobis distances with the covariance of each class, or of all classes (Goswami et al., 2023)."""

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from etag.core.random import Stream
from etag.methods.base import MethodInfo
from etag.methods.closed_form import ClosedFormMethod, ClosedFormOptions
from etag.methods.registry import method
from etag.models.prediction import MahalanobisRule


class FecamOptions(ClosedFormOptions):
    """Options of FeCAM."""

    changed_defaults: ClassVar[dict[str, Any]] = {"statistics": "per_class"}
    covariance: Literal["per_class", "tied"] = Field("per_class", description="of each class, or one for all classes")
    power: float = Field(0.5, gt=0, le=1, description="Tukey's power of features that are not negative; 1: none")
    variance_shrinkage: NonNegativeFloat = Field(1.0, description="gamma_1: adds this share of the mean variance")
    covariance_shrinkage: NonNegativeFloat = Field(1.0, description="gamma_2: the same for covariances")


@method(
    "fecam",
    MethodInfo(
        title="FeCAM",
        color="#009E73",
        summary="Mahalanobis distance to class means with the covariance of each class; frozen backbone",
        source="Goswami et al., 2023",
        stores="backbone; one mean and one covariance per class (tied: one covariance)",
        head="none: Mahalanobis distances",
    ),
)
class FeCAM(ClosedFormMethod[FecamOptions]):
    """Shrunk covariances become correlations R_k; the score of class k is -(f - m_k)' R_k^-1 (f - m_k) / 2."""

    Options = FecamOptions
    rule: MahalanobisRule

    def new_rule(self, size: int, stream: Stream) -> MahalanobisRule:  # noqa: ARG002
        """Distances; features of both signs are not raised to a power."""
        return MahalanobisRule(size, 1.0 if self.solver.backbone.signed else self.options.power)

    def fit(self) -> None:
        """A whitening matrix for each covariance; those of classes that have not changed are not computed again."""
        s, known = self.statistics, self.rule.factors
        if self.options.covariance == "tied" or not s.per_class:
            factors = [self.whitening(s.covariance_within)]
        else:
            factors = [
                self.whitening(s.covariance(label)) if label in self.changed or label >= len(known) else known[label]
                for label in range(len(s.count))
            ]
        self.rule.store(means=s.means.float(), factors=torch.stack([factor.float() for factor in factors]))

    def whitening(self, covariance: Tensor) -> Tensor:
        """F with F F' = R^-1, the inverse correlation matrix of the shrunk covariance."""
        off_diagonal = ~torch.eye(len(covariance), dtype=torch.bool, device=covariance.device)
        share = self.options.covariance_shrinkage * covariance[off_diagonal].mean() * off_diagonal
        variance = self.options.variance_shrinkage * covariance.diagonal().mean() * ~off_diagonal
        shrunk = covariance + variance + share
        scale = shrunk.diagonal().clamp(min=1e-12).rsqrt()
        lower = torch.linalg.cholesky(scale[:, None] * shrunk * scale)
        identity = torch.eye(len(lower)).to(lower)
        inverse: Tensor = torch.linalg.solve_triangular(lower, identity, upper=False)
        return inverse.T
