"""Cross-entropy on the images of a task."""

from typing import Literal

from torch import Tensor

from etag.core.outputs import Need, require
from etag.core.scenario import Task
from etag.core.work import StepData, Term
from etag.losses.classification import cross_entropy

Scope = Literal["seen", "new", "old", "all"]


def output_range(scope: Scope, task: Task) -> tuple[int, int | None]:
    """First and end of the outputs in a cross-entropy; `all` includes outputs of classes still to come."""
    return {
        "seen": (0, task.num_seen),
        "new": (task.num_old, task.num_seen),
        "old": (0, task.num_old),
        "all": (0, None),
    }[scope]


def cross_entropy_term(task: Task, scope: Scope = "seen", weight: float = 1.0) -> Term:
    """Eq. (1): the cross-entropy of the head on the task's images."""
    first, end = output_range(scope, task)

    def compute(step: StepData) -> Tensor:
        return cross_entropy(require(step.student.logits), step.batch.labels, first, end)

    return Term("ce", compute, weight, student_need=Need.LOGITS, identity=f"cross-entropy of outputs {first} to {end}")
