"""EWC: elastic weight consolidation (Kirkpatrick et al., 2017)."""

from functools import partial
from typing import Literal

from pydantic import Field, NonNegativeFloat

from etag.core.outputs import require
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Plan
from etag.methods.base import Method, MethodInfo, PerTaskMethodOptions
from etag.methods.parts.importance import Importance, ImportanceOptions, log_likelihood
from etag.methods.registry import method


class EwcOptions(PerTaskMethodOptions):
    """Options of EWC."""

    weight: NonNegativeFloat = Field(10_000.0, description="weight of the penalty")
    importance: ImportanceOptions = Field(ImportanceOptions(), description="estimation of the Fisher information")
    labels: Literal["argmax", "true", "multinomial"] = Field(
        "argmax", description="labels of the likelihood: likeliest, true, or drawn"
    )


@method(
    "ewc",
    MethodInfo(
        title="EWC",
        color="#E69F00",
        summary="a penalty on moving important weights, measured by their Fisher information",
        source="Kirkpatrick et al., 2017",
        stores="solver, one importance per backbone weight; one row per class in the heads",
        head="linear, one per task",
    ),
)
class EWC(Method[EwcOptions]):
    """Importance is the diagonal of the Fisher information: the mean squared gradient of the log-likelihood."""

    Options = EwcOptions

    def build(self, stream: Stream) -> None:
        """Store importances beside the solver."""
        super().build(stream)
        self.importance = Importance(self.options.importance, 2, log_likelihood(self.options.labels))
        self.parts["importance"] = self.importance

    def phases(self, task: Task) -> Plan:
        """Train the solver under the penalty, then measure the new importances."""
        terms = [self.cross_entropy(task)]
        if task.index:
            terms.append(self.importance.penalty(self.solver, require(self.teacher), self.options.weight))
        yield self.solver_phase(task, terms)
        size = self.context.train.for_task(task.index).batch_size
        batches = partial(self.pass_batches, "importance", size=size)
        yield from self.importance.measure_task(task, self.solver, batches)
