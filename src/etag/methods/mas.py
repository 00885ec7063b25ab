"""MAS: memory aware synapses (Aljundi et al., 2018)."""

from functools import partial

from pydantic import Field, NonNegativeFloat

from etag.core.outputs import require
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Plan
from etag.methods.base import Method, MethodInfo, PerTaskMethodOptions
from etag.methods.parts.importance import Importance, ImportanceOptions, output_norm
from etag.methods.registry import method


class MasOptions(PerTaskMethodOptions):
    """Options of MAS."""

    weight: NonNegativeFloat = Field(400.0, description="weight of the penalty")
    importance: ImportanceOptions = Field(ImportanceOptions(), description="estimation of the importances")


@method(
    "mas",
    MethodInfo(
        title="MAS",
        color="#56B4E9",
        summary="a penalty on moving the weights that the outputs are sensitive to",
        source="Aljundi et al., 2018",
        stores="solver, one importance per backbone weight; one row per class in the heads",
        head="linear, one per task",
    ),
)
class MAS(Method[MasOptions]):
    """Importance is the mean absolute gradient of the L2 norm of the logits: no labels are needed."""

    Options = MasOptions

    def build(self, stream: Stream) -> None:
        """Store importances beside the solver."""
        super().build(stream)
        self.parts["importance"] = self.importance = Importance(self.options.importance, 1, output_norm)

    def phases(self, task: Task) -> Plan:
        """Train the solver under the penalty, then measure the new importances."""
        terms = [self.cross_entropy(task)]
        if task.index:
            terms.append(self.importance.penalty(self.solver, require(self.teacher), self.options.weight))
        yield self.solver_phase(task, terms)
        size = self.context.train.for_task(task.index).batch_size
        batches = partial(self.pass_batches, "importance", size=size)
        yield from self.importance.measure_task(task, self.solver, batches)
