"""Cross-entropy on the images of the task."""

from typing import Literal

from torch import Tensor

from etag.core.outputs import Need, require
from etag.core.scenario import Task
from etag.core.work import Step, Term
from etag.losses.classification import cross_entropy

Scope = Literal["seen", "new", "all"]


def outputs_in(scope: Literal["seen", "new", "old", "all"], task: Task) -> tuple[int, int | None]:
    """First and end of the outputs a cross-entropy runs over; `all` counts those of classes to come."""
    return {"seen": (0, task.seen), "new": (task.old, task.seen), "old": (0, task.old), "all": (0, None)}[scope]


def classification(task: Task, scope: Scope = "seen", weight: float = 1.0) -> Term:
    """Eq. (1)."""
    first, end = outputs_in(scope, task)

    def compute(step: Step) -> Tensor:
        return cross_entropy(require(step.student.logits), step.batch.labels, first, end)

    return Term("ce", compute, weight, student=Need.LOGITS)
