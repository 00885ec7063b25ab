"""IL2M: incremental learning with dual memory (Belouadah and Popescu, 2019)."""

import torch
from pydantic import Field
from torch import Tensor, nn

from etag.core.outputs import Need, require
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Batch, DataPass, Plan
from etag.methods.base import ExemplarMethodOptions, Method, MethodInfo
from etag.methods.parts.memory import ExemplarOptions
from etag.methods.registry import method
from etag.models.prediction import ClassScores, PredictionRule, RectifiedRule
from etag.models.solver import Solver


class Il2mOptions(ExemplarMethodOptions):
    """Options of IL2M."""

    exemplars: ExemplarOptions = Field(ExemplarOptions(), description="images to store")
    rectify: bool = Field(True, description="give old classes back the scores they once had")


@method(
    "il2m",
    MethodInfo(
        title="IL2M",
        color="#0072B2",
        summary="fine-tuning with exemplars; scores are rectified by those that classes had when they were new",
        source="Belouadah and Popescu, 2019",
        stores="solver, 20 images per class; one row in the head and two mean scores per class, one mean per task",
        exemplars=True,
    ),
)
class IL2M(Method[Il2mOptions]):
    """Two memories: exemplars, and the mean scores of classes."""

    Options = Il2mOptions

    def build(self, stream: Stream) -> None:
        """Store scores beside solver and exemplars."""
        super().build(stream)
        self.parts["scores"] = self.scores = ClassScores()

    def phases(self, task: Task) -> Plan:
        """Train the solver; measure mean scores on new images and exemplars; store new exemplars."""
        yield self.solver_phase(task, [self.cross_entropy(task)])
        assert self.memory is not None
        batches = self.pass_batches("scores", self.memory.joined_to(task.train))
        sums = yield DataPass("scores", _ScoreSums(self.solver, task), batches, reduce="sum")
        own = sums["own"] / sums["images"].clamp(min=1)
        self.scores.add_task(
            own[task.num_old :], own[: task.num_old], sums["confidence"] / sums["images"][task.num_old :].sum()
        )
        yield from self.store_exemplars(task)

    def prediction_rule(self) -> PredictionRule:
        """Rectified scores, unless that is turned off."""
        return RectifiedRule(self.solver.head, self.scores) if self.options.rectify else super().prediction_rule()


class _ScoreSums(nn.Module):
    """Sums per class of images and of its own logit over them; the sum of the highest logit over all new images."""

    def __init__(self, solver: Solver, task: Task) -> None:
        super().__init__()
        self.solver, self._task = solver, task

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        seen, old = self._task.num_seen, self._task.num_old
        logits = require(self.solver(batch.inputs, Need.LOGITS).logits)[:, :seen]
        of_class = torch.nn.functional.one_hot(batch.labels, seen).to(logits)
        is_new = (batch.labels >= old).to(logits)
        return {
            "images": of_class.sum(0),
            "own": (of_class * logits).sum(0),
            "confidence": (logits.amax(1) * is_new).sum(),
        }
