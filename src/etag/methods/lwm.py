"""LwM: learning without memorizing (Dhar et al., 2019)."""

from collections.abc import Sequence

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from etag.core.errors import EtagError
from etag.core.outputs import Need, require
from etag.core.scenario import Task
from etag.core.work import Plan
from etag.methods.base import Method, MethodInfo, MultiHeadOptions
from etag.methods.parts.distillation import attention_term, logits_term
from etag.methods.registry import method


class LwmOptions(MultiHeadOptions):
    """LwM's own options."""

    beta: NonNegativeFloat = Field(2.0, description="weight of the outputs' distillation")
    gamma: NonNegativeFloat = Field(1.0, description="weight of the attention's distillation")
    tau: PositiveFloat = Field(2.0, description="temperature of the outputs' distillation")
    stage: PositiveInt | None = Field(
        None,
        description="stage whose attention is distilled; None is the last whose map has more than one pixel. All "
        "but the very last take second-order gradients",
    )


@method(
    "lwm",
    MethodInfo(
        title="LwM",
        color="#CC79A7",
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
        """Attention is a map of more than one pixel."""
        super().check(task_sizes)
        self.check_maps()
        stage, pixels = self.options.stage, self.map_pixels()
        if stage is not None and stage > len(pixels):
            raise EtagError(f"method.stage={stage} does not exist: this backbone has {len(pixels)} stages.")
        if max(pixels) == 1 or (stage is not None and pixels[stage - 1] == 1):
            raise EtagError(
                f"a map of one pixel has no attention: the maps of this backbone have {pixels} pixels at "
                f"{self.context.size} px; choose another method.stage, or set data.size higher."
            )

    def map_pixels(self) -> list[int]:
        """Of each stage."""
        c = self.context
        image = torch.zeros(1, c.channels, c.size, c.size, device=c.placement.device)
        with torch.no_grad():
            maps = self.solver.eval()(image, Need.STAGES).stages
        return [int(stage.shape[2:].numel()) for stage in maps]

    @property
    def stage(self) -> int:
        """The one that is looked at: the last whose map has more than one pixel, if none is asked for."""
        return self.options.stage or max(n for n, pixels in enumerate(self.map_pixels(), start=1) if pixels > 1)

    def phases(self, task: Task) -> Plan:
        """One."""
        o, terms = self.options, [self.classification(task)]
        if task.index:
            terms.append(logits_term(task, o.tau, o.beta))
            terms.append(attention_term(task, self.solver, require(self.teacher), self.stage, o.gamma))
        yield self.solver_phase(task, terms)
