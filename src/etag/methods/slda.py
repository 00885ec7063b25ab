"""SLDA: streaming linear discriminant analysis (Hayes and Kanan, 2020)."""

import torch
from pydantic import Field

from etag.core.random import Stream
from etag.methods.base import MethodInfo
from etag.methods.closed_form import ClosedFormMethod, ClosedFormOptions
from etag.methods.parts.statistics import shrunk, solve
from etag.methods.registry import method
from etag.models.prediction import LinearRule


class SldaOptions(ClosedFormOptions):
    """Options of SLDA."""

    shrinkage: float = Field(
        0.5, ge=0, le=1, description="how far the covariance is moved towards a multiple of the identity"
    )


@method(
    "slda",
    MethodInfo(
        title="SLDA",
        color="#F0E442",
        summary="linear discriminant analysis with running class means and one covariance; frozen backbone",
        source="Hayes and Kanan, 2020",
        stores="backbone; one mean per class, one covariance",
        head="linear, in closed form",
    ),
)
class SLDA(ClosedFormMethod[SldaOptions]):
    """Gaussian classes with means m_k and one covariance S: the score of class k is m_k' S^-1 f - m_k' S^-1 m_k / 2."""

    Options = SldaOptions
    rule: LinearRule

    def new_rule(self, size: int, stream: Stream) -> LinearRule:  # noqa: ARG002
        """A linear rule."""
        return LinearRule(size)

    def fit(self) -> None:
        """The discriminants of all classes."""
        means = self.statistics.means
        covariance = shrunk(self.statistics.covariance_within, self.options.shrinkage)
        if self.statistics.count.max() < 2:  # no class has two images that could differ: the nearest mean decides
            covariance = torch.eye(len(covariance)).to(covariance)
        weight = solve(covariance, means.T).T
        self.rule.store(weight=weight.float(), bias=(-0.5 * (weight * means).sum(1)).float())
