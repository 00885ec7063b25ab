"""Old classes to new ones: lambda of Eqs. (5), (9), (10)."""

from typing import Literal

from etag.core.scenario import Task

Ratio = Literal["exact", "integer"]


def class_ratio(task: Task, kind: Ratio) -> float:
    """m_old / m_new, or the release's integer, which is the same where the new classes divide the base ones."""
    return task.old / task.new if kind == "exact" else task.base // task.new + task.index - 1
