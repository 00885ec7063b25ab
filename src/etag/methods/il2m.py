"""IL2M: incremental learning with dual memory (Belouadah and Popescu, 2019)."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from etag.core.outputs import Need, Predictor, require
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Batch, DataPass, Plan
from etag.methods.base import Method, MethodInfo, MethodOptions
from etag.methods.parts.memory import ExemplarOptions
from etag.methods.registry import method
from etag.models.predictors import RectifyingPredictor
from etag.models.solver import Solver


class Il2mOptions(MethodOptions):
    """IL2M's own options."""

    head: Literal["growing", "fixed"] = "growing"
    exemplars: ExemplarOptions = ExemplarOptions()
    rectify: bool = Field(
        True, description="give old classes back the scores they once had; without it, fine + exemplars"
    )


@method(
    "il2m",
    MethodInfo(
        title="IL2M",
        color="#0072B2",
        summary="fine-tuning with exemplars, and scores rectified by what they were when a class was new",
        source="Belouadah and Popescu, 2019",
        stores="solver, 20 images per class; a row in the head and two mean scores per class, a mean per task",
        exemplars=True,
    ),
)
class IL2M(Method):
    """The second memory is that of the scores."""

    Options = Il2mOptions
    answering = frozenset({"solver", "scores"})

    def build(self, stream: Stream) -> None:
        """Scores too, still none."""
        super().build(stream)
        self.scores = RectifyingPredictor()

    def phases(self, task: Task) -> Plan:
        """Solver; mean scores on the new images and the kept ones; new exemplars."""
        yield self.solver_phase(task, [self.classification(task)])
        assert self.memory is not None
        batches = self.pass_batches("scores", self.memory.joined_to(task.train))
        found = yield DataPass("scores", _ScoreSums(self.solver, task), batches, reduce="sum")
        own = found["own"] / found["images"].clamp(min=1)
        self.scores.learn(own[task.old :], own[: task.old], found["confidence"] / found["images"][task.old :].sum())
        yield from self.remember(task)

    def predictor(self) -> Predictor:
        """Rectified, unless that is switched off."""
        return self.scores if self.options.rectify else super().predictor()

    def parts(self) -> dict[str, nn.Module]:
        """The scores too."""
        return super().parts() | {"scores": self.scores}


class _ScoreSums(nn.Module):
    """Per class: images, and the sum of its own logit over them; the sum of the highest logit over all new images."""

    def __init__(self, solver: Solver, task: Task) -> None:
        super().__init__()
        self.solver, self._task = solver, task

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        seen, old = self._task.seen, self._task.old
        logits = require(self.solver(batch.inputs, Need.LOGITS).logits)[:, :seen]
        of_class = torch.nn.functional.one_hot(batch.labels, seen).to(logits)
        is_new = (batch.labels >= old).to(logits)
        return {
            "images": of_class.sum(0),
            "own": (of_class * logits).sum(0),
            "confidence": (logits.amax(1) * is_new).sum(),
        }
