"""LwF: learning without forgetting (Li and Hoiem, 2017)."""

from pydantic import Field, NonNegativeFloat, PositiveFloat

from etag.core.scenario import Task
from etag.core.work import Plan
from etag.methods.base import Method, MethodInfo, PerTaskMethodOptions
from etag.methods.parts.distillation import logits_term
from etag.methods.registry import method


class LwfOptions(PerTaskMethodOptions):
    """Options of LwF."""

    weight: NonNegativeFloat = Field(10.0, description="weight of the distillation")
    tau: PositiveFloat = Field(2.0, description="temperature of the distillation")


@method(
    "lwf",
    MethodInfo(
        title="LwF",
        color="#009E73",
        summary="distillation of the old classes' logits on new images, in one softmax over all old heads",
        source="Li and Hoiem, 2017",
        stores="solver; one row per class in the heads",
        head="linear, one per task",
    ),
)
class LwF(Method[LwfOptions]):
    """Cross-entropy of the new head; the logits of all old heads together stay close to the teacher's."""

    Options = LwfOptions

    def phases(self, task: Task) -> Plan:
        """Train the solver."""
        terms = [self.cross_entropy(task)]
        if task.index:
            terms.append(logits_term(task, self.options.tau, self.options.weight))
        yield self.solver_phase(task, terms)
