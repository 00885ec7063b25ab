"""Metrics as functions of the accuracy matrix, and the table `METRICS` that lists all of them.

The matrix is a list of rows. Row t holds a[t, u], the accuracy on the test images of task u after training on task t,
for u = 0 .. t. `classes` has the number of classes of each task. All values are fractions of 1.

Papers average over tasks in two ways and rarely say which: *plain* gives every task the same weight, *weighted* gives
every class the same weight (the accuracy over all test images, where classes have equally many). Every number we
print says which one it is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Metric:
    """One number that sums up a run; `function` computes it from the accuracy matrix and the classes of each task."""

    name: str  # its key in metrics.json
    title: str
    definition: str
    better: Literal["higher", "lower"]
    function: Callable[[Matrix, Sequence[int]], float]

    @property
    def unit(self) -> str:
        """Percent of an accuracy, or percentage points of a difference of accuracies."""
        return "%" if self.better == "higher" else "points"


def accuracy_after_each_task(matrix: Matrix, classes: Sequence[int], weighted: bool) -> list[float]:
    """Accuracy over all tasks trained so far, after each task."""
    return [_mean(row, classes[: len(row)] if weighted else [1] * len(row)) for row in matrix]


def average_accuracy(matrix: Matrix, classes: Sequence[int], weighted: bool) -> float:
    """A: the mean of `accuracy_after_each_task` over all tasks, the base task included."""
    steps = accuracy_after_each_task(matrix, classes, weighted)
    return sum(steps) / len(steps)


def last_accuracy(matrix: Matrix, classes: Sequence[int]) -> float:
    """Weighted accuracy over all tasks after the last one."""
    return accuracy_after_each_task(matrix, classes, weighted=True)[-1]


def forgetting_per_task(matrix: Matrix) -> list[float]:
    """For each task but the last: its best accuracy before the last task minus the one after it; may be negative."""
    last = len(matrix) - 1
    return [max(matrix[step][task] for step in range(task, last)) - matrix[last][task] for task in range(last)]


def forgetting(matrix: Matrix, classes: Sequence[int], weighted: bool) -> float:
    """F (Chaudhry et al., 2018): mean forgetting over the tasks before the last; 0 if there is only one task."""
    lost = forgetting_per_task(matrix)
    return _mean(lost, classes[: len(lost)] if weighted else [1] * len(lost)) if lost else 0.0


def forgetting_over_all_tasks(matrix: Matrix, classes: Sequence[int] = ()) -> float:  # noqa: ARG001
    """The F that the paper appears to print: summed over past tasks, divided by the number of *all* tasks."""
    return sum(forgetting_per_task(matrix)) / len(matrix)


def _mean(values: Sequence[float], weights: Sequence[int]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)


METRICS = (
    Metric(
        "A_weighted",
        "Average accuracy A, weighted",
        "after each task the accuracy over all classes seen, then the mean of these",
        "higher",
        partial(average_accuracy, weighted=True),
    ),
    Metric(
        "A_plain",
        "Average accuracy A, plain",
        "after each task the mean of the accuracies on all tasks so far, then the mean of these",
        "higher",
        partial(average_accuracy, weighted=False),
    ),
    Metric(
        "last_accuracy",
        "Last accuracy, weighted",
        "accuracy over all classes after the last task",
        "higher",
        last_accuracy,
    ),
    Metric(
        "F_weighted",
        "Forgetting F, weighted",
        "best earlier accuracy minus the last, per past task, averaged by number of classes",
        "lower",
        partial(forgetting, weighted=True),
    ),
    Metric(
        "F_plain",
        "Forgetting F, plain",
        "best earlier accuracy minus the last, averaged over past tasks (Chaudhry et al., 2018)",
        "lower",
        partial(forgetting, weighted=False),
    ),
    Metric(
        "F_paper",
        "Forgetting F, as the paper divides",
        "best earlier accuracy minus the last, summed over past tasks, divided by the number of all tasks",
        "lower",
        forgetting_over_all_tasks,
    ),
)


def summary(matrix: Matrix, classes: Sequence[int]) -> dict[str, float]:
    """The value of every metric, by name."""
    return {metric.name: metric.function(matrix, classes) for metric in METRICS}


def stored_summary(stored: Mapping[str, Any]) -> dict[str, float]:
    """Every metric from the content of metrics.json; those newer than the file are computed from its matrix."""
    classes = stored.get("classes_in_task") or stored["classes_per_task"]
    matrix = [row[: step + 1] for step, row in enumerate(stored["accuracy_matrix"])]
    return {
        metric.name: stored[metric.name] if metric.name in stored else metric.function(matrix, classes)
        for metric in METRICS
    }
