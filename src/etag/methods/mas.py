"""MAS: memory aware synapses (Aljundi et al., 2018)."""

from pydantic import Field, NonNegativeFloat

from etag.methods.base import MethodInfo, MultiHeadOptions
from etag.methods.parts.importance import Importance, ImportanceOptions, PenalisedMethod, output_norm
from etag.methods.registry import method


class MasOptions(MultiHeadOptions):
    """MAS's own options."""

    weight: NonNegativeFloat = Field(400.0, description="of the penalty")
    importance: ImportanceOptions = Field(ImportanceOptions(), description="how importances are estimated")


@method(
    "mas",
    MethodInfo(
        title="MAS",
        color="#56B4E9",
        summary="a penalty on moving the weights that the outputs are sensitive to",
        source="Aljundi et al., 2018",
        stores="solver, one importance per backbone weight; a row per class in the heads",
        head="linear, one a task",
    ),
)
class MAS(PenalisedMethod):
    """Importance is the mean absolute gradient of the length of the outputs: no labels are needed."""

    Options = MasOptions

    def new_importance(self) -> Importance:
        """Absolute gradients of the length of the outputs."""
        return Importance(self.options.importance, 1, output_norm)
