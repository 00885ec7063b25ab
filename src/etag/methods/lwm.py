"""LwM: learning without memorizing (Dhar et al., 2019)."""

from collections.abc import Sequence

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from etag.core.errors import EtagError
from etag.core.outputs import needed
from etag.core.scenario import Task
from etag.core.work import Plan
from etag.methods.base import Card, Method, MultiHeadOptions
from etag.methods.parts.distillation import attention_term, logits_term
from etag.methods.registry import method


class LwmOptions(MultiHeadOptions):
    """LwM's own options."""

    beta: NonNegativeFloat = Field(2.0, description="weight of the outputs' distillation")
    gamma: NonNegativeFloat = Field(1.0, description="weight of the attention's distillation")
    tau: PositiveFloat = Field(2.0, description="temperature of the outputs' distillation")
    stage: PositiveInt | None = Field(
        None,
        description="stage whose attention is distilled; None is the last, which needs no second-order gradients",
    )


@method(
    "lwm",
    Card(
        summary="distillation of the old heads' outputs and of where the network looks",
        source="Dhar et al., 2019",
        stores="solver; a row per class in the heads",
        head="linear, one a task",
    ),
)
class LwM(Method):
    """LwF, and the same attention (Grad-CAM) for the likeliest old class."""

    Options = LwmOptions

    def check(self, task_sizes: Sequence[int]) -> None:
        """Attention is a map: the backbone must have maps, and the stage."""
        super().check(task_sizes)
        stages = len(self.solver.backbone.stages)
        if (self.options.stage or 1) > stages:
            raise EtagError(f"method.stage={self.options.stage} does not exist: this backbone has {stages} stages.")
        if not self.solver.backbone.has_maps:
            raise EtagError(
                f"{self.options.name} needs maps to look at, which model.backbone=mlp has not: choose another."
            )

    def phases(self, task: Task) -> Plan:
        """One."""
        o, terms = self.options, [self.classification(task)]
        if task.index:
            terms.append(logits_term(task, o.tau, o.beta))
            terms.append(attention_term(task, self.solver, needed(self.teacher), o.stage, o.gamma))
        yield self.solver_phase(task, terms)
