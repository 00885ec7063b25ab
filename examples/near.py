"""A method of your own: stay near the old features. `etag run --plugin examples/near.py --method near` runs it."""

from pydantic import Field, NonNegativeFloat
from torch import Tensor

from etag.core.outputs import Need, require
from etag.core.scenario import Task
from etag.core.work import Plan, StepData, Term
from etag.losses.embedding import feature_distance
from etag.methods.base import Method, MethodInfo, MethodOptions
from etag.methods.registry import method


class NearOptions(MethodOptions):
    """Options of the example: what every method has, and one more."""

    weight: NonNegativeFloat = Field(1.0, description="weight of the distance to the old features")


def distance(step: StepData) -> Tensor:
    """Mean distance between the features of student and teacher."""
    return feature_distance(require(step.student.feature), require(step.teacher.feature))


@method("near", MethodInfo("Near", "feature distillation", source="an example", stores="solver"))
class Near(Method[NearOptions]):
    """Cross-entropy; after the base task also the distance of the features."""

    Options = NearOptions

    def phases(self, task: Task) -> Plan:
        """Train the solver."""
        near = Term("near", distance, self.options.weight, student_need=Need.FEATURE, teacher_need=Need.FEATURE)
        yield self.solver_phase(task, [self.cross_entropy(task), near] if task.index else [self.cross_entropy(task)])
