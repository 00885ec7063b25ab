"""LwF: learning without forgetting (Li and Hoiem, 2017)."""

from pydantic import Field, NonNegativeFloat, PositiveFloat

from etag.core.scenario import Task
from etag.core.work import Plan
from etag.methods.base import Method, MethodInfo, MultiHeadOptions
from etag.methods.parts.distillation import logits_term
from etag.methods.registry import method


class LwfOptions(MultiHeadOptions):
    """LwF's own options."""

    weight: NonNegativeFloat = Field(10.0, description="of the distillation")
    tau: PositiveFloat = Field(2.0, description="temperature of the distillation")


@method(
    "lwf",
    MethodInfo(
        title="LwF",
        color="#009E73",
        summary="distillation of the old heads' outputs on new images",
        source="Li and Hoiem, 2017",
        stores="solver; a row per class in the heads",
        head="linear, one a task",
    ),
)
class LwF(Method):
    """Cross-entropy of the new head; the old heads go on saying what they said."""

    Options = LwfOptions

    def phases(self, task: Task) -> Plan:
        """One."""
        terms = [self.classification(task)]
        if task.index:
            terms.append(logits_term(task, self.options.tau, self.options.weight))
        yield self.solver_phase(task, terms)
