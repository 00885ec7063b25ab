"""EWC: elastic weight consolidation (Kirkpatrick et al., 2017)."""

from typing import Literal

from pydantic import Field, NonNegativeFloat

from etag.methods.base import MethodInfo, MultiHeadOptions
from etag.methods.parts.importance import Importance, ImportanceOptions, PenalisedMethod, log_likelihood
from etag.methods.registry import method


class EwcOptions(MultiHeadOptions):
    """EWC's own options."""

    weight: NonNegativeFloat = Field(10_000.0, description="of the penalty")
    importance: ImportanceOptions = Field(ImportanceOptions(), description="how the Fisher information is estimated")
    labels: Literal["argmax", "true", "multinomial"] = Field(
        "argmax", description="labels whose likelihood is differentiated: the likeliest, the true, or drawn ones"
    )


@method(
    "ewc",
    MethodInfo(
        title="EWC",
        color="#E69F00",
        summary="a penalty on moving the weights that matter, by their Fisher information",
        source="Kirkpatrick et al., 2017",
        stores="solver, one importance per backbone weight; a row per class in the heads",
        head="linear, one a task",
    ),
)
class EWC(PenalisedMethod):
    """Importance is the diagonal of the Fisher information: the mean squared gradient of the log-likelihood."""

    Options = EwcOptions

    def new_importance(self) -> Importance:
        """Squared gradients of the log-likelihood."""
        return Importance(self.options.importance, 2, log_likelihood(self.options.labels))
