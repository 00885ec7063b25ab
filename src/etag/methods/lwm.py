"""LwM: learning without memorizing (Dhar et al., 2019)."""

from collections.abc import Sequence

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from etag.core.errors import EtagError
from etag.core.outputs import Need, require
from etag.core.scenario import Task
from etag.core.work import Plan
from etag.methods.base import Method, MethodInfo, PerTaskMethodOptions
from etag.methods.parts.distillation import attention_term, logits_term
from etag.methods.registry import method


class LwmOptions(PerTaskMethodOptions):
    """Options of LwM."""

    beta: NonNegativeFloat = Field(2.0, description="weight of the distillation of outputs")
    gamma: NonNegativeFloat = Field(1.0, description="weight of the distillation of attention maps")
    tau: PositiveFloat = Field(2.0, description="temperature of the distillation of outputs")
    stage: PositiveInt | None = Field(
        None,
        description="stage whose attention is distilled, counted among those that train; null: the last with maps of "
        "several pixels",
    )


@method(
    "lwm",
    MethodInfo(
        title="LwM",
        color="#CC79A7",
        summary="distillation of the old heads' outputs and of attention maps",
        source="Dhar et al., 2019",
        stores="solver; one row per class in the heads",
        head="linear, one per task",
    ),
)
class LwM(Method[LwmOptions]):
    """LwF, and the same attention map (Grad-CAM) for the likeliest old class."""

    Options = LwmOptions

    def check(self, task_sizes: Sequence[int]) -> None:
        """Attention needs a map of more than one pixel."""
        super().check(task_sizes)
        self.check_maps()
        stage, pixels = self.options.stage, self.map_pixels()
        if stage is not None and stage > len(pixels):
            raise EtagError(f"method.stage={stage} does not exist: this backbone has {len(pixels)} stages.")
        if max(pixels) == 1 or (stage is not None and pixels[stage - 1] == 1):
            raise EtagError(
                f"attention needs a map of more than one pixel: the maps of this backbone have {pixels} pixels at "
                f"{self.context.size} px; choose another method.stage, or raise data.size."
            )

    def map_pixels(self) -> list[int]:
        """Pixels of the map of each stage."""
        c = self.context
        image = torch.zeros(1, c.channels, c.size, c.size, device=c.placement.device)
        with torch.no_grad():
            maps = self.solver.eval()(image, Need.STAGES).stages
        return [int(stage.shape[2:].numel()) for stage in maps]

    @property
    def stage(self) -> int:
        """The stage whose attention is distilled: as given, or the last whose map has more than one pixel."""
        return self.options.stage or max(n for n, pixels in enumerate(self.map_pixels(), start=1) if pixels > 1)

    def phases(self, task: Task) -> Plan:
        """Train the solver."""
        o, terms = self.options, [self.cross_entropy(task)]
        if task.index:
            terms.append(logits_term(task, o.tau, o.beta))
            terms.append(attention_term(task, self.solver, require(self.teacher), self.stage, o.gamma))
        yield self.solver_phase(task, terms)
