"""A method of one's own: stay near the old features. Run it by `etag run --plugin examples/near.py --method near`."""

from pydantic import Field, NonNegativeFloat

from etag.core.outputs import Need, require
from etag.core.scenario import Task
from etag.core.work import Plan, Step, Term
from etag.losses.embedding import feature_distance
from etag.methods.base import Method, MethodInfo, MethodOptions
from etag.methods.registry import method


class NearOptions(MethodOptions):
    """Its own option."""

    weight: NonNegativeFloat = Field(1.0, description="of the distance to the old features")


def distance(step: Step):
    """How far the student's features are from the teacher's."""
    return feature_distance(require(step.student.feature), require(step.teacher.feature))


@method("near", MethodInfo("feature distillation", "an example", "solver"))
class Near(Method):
    """Cross-entropy, and after the base task the distance of the features."""

    Options = NearOptions

    def phases(self, task: Task) -> Plan:
        """One phase."""
        near = Term("near", distance, self.options.weight, student=Need.FEATURE, teacher=Need.FEATURE)
        yield self.solver_phase(
            task, [self.classification(task), near] if task.index else [self.classification(task)]
        )
