"""FeCAM: Mahalanobis distances with the covariance of each class, or of all classes (Goswami et al., 2023)."""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, model_validator
from torch import Tensor

from etag.core.random import Stream
from etag.methods.base import MethodInfo
from etag.methods.closed_form import ClosedFormMethod, ClosedFormOptions
from etag.methods.parts.statistics import inverse_of_correlations
from etag.methods.registry import method
from etag.models.prediction import Inverse, MahalanobisRule


class FecamOptions(ClosedFormOptions):
    """Options of FeCAM."""

    changed_defaults: ClassVar[dict[str, Any]] = {"statistics": "per_class"}
    covariance: Literal["per_class", "tied"] = Field("per_class", description="of each class, or one for all classes")
    power: float = Field(0.5, gt=0, le=1, description="Tukey's power of features that are not negative; 1: none")
    variance_shrinkage: float = Field(1.0, ge=0.01, description="gamma_1: adds this share of the mean variance")
    covariance_shrinkage: NonNegativeFloat = Field(
        1.0, description="gamma_2: the same for covariances; not above gamma_1"
    )

    @model_validator(mode="after")
    def _shrunk_covariances_have_an_inverse(self) -> Self:
        if self.covariance_shrinkage > self.variance_shrinkage:
            raise ValueError("covariance_shrinkage may not be larger than variance_shrinkage")
        return self


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
        """An inverse for each covariance; those of classes that have not changed are not computed again."""
        s, known = self.statistics, self.rule.inverses()
        if self.options.covariance == "tied" or not s.per_class:
            inverses = [self.inverse(s.covariance_within)]
        else:
            inverses = [
                self.inverse(s.covariance(label)) if label in self.changed or label >= len(known) else known[label]
                for label in range(len(s.count))
            ]
        self.rule.set(s.means, inverses)

    def inverse(self, covariance: Tensor) -> Inverse:
        """The inverse of the shrunk correlations."""
        return inverse_of_correlations(covariance, self.options.variance_shrinkage, self.options.covariance_shrinkage)
