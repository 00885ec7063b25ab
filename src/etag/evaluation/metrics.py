"""Metrics as pure functions of the accuracy matrix.

The matrix is a list of rows; row t holds a[t, u], the accuracy on the test images of task u after learning task t,
for u = 0 .. t. `classes` counts the classes of each task. All values are fractions of 1.

Two ways to average over tasks are in use, and papers rarely say which: *plain* gives every task the same weight,
*weighted* gives every class the same weight (so it is the accuracy over all test images, where classes have equally
many). Every number we print says which it is.
"""

from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]


def step_accuracies(matrix: Matrix, classes: Sequence[int], weighted: bool) -> list[float]:
    """Accuracy over all tasks learned so far, after each task."""
    return [_mean(row, classes[: len(row)] if weighted else [1] * len(row)) for row in matrix]


def average_accuracy(matrix: Matrix, classes: Sequence[int], weighted: bool) -> float:
    """A: mean over steps, the base task's included, of the step accuracy."""
    steps = step_accuracies(matrix, classes, weighted)
    return sum(steps) / len(steps)


def forgetting_per_task(matrix: Matrix) -> list[float]:
    """For each task but the last: its best accuracy before the last step, minus that after it. May be negative."""
    last = len(matrix) - 1
    return [max(matrix[step][task] for step in range(task, last)) - matrix[last][task] for task in range(last)]


def forgetting(matrix: Matrix, classes: Sequence[int], weighted: bool) -> float:
    """F (Chaudhry et al., 2018): mean forgetting over the tasks before the last; 0 if there is only one task."""
    lost = forgetting_per_task(matrix)
    return _mean(lost, classes[: len(lost)] if weighted else [1] * len(lost)) if lost else 0.0


def forgetting_over_all_tasks(matrix: Matrix) -> float:
    """The F that the paper appears to print: summed over past tasks, divided by the number of *all* tasks."""
    return sum(forgetting_per_task(matrix)) / len(matrix)


def _mean(values: Sequence[float], weights: Sequence[int]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)


def summary(matrix: Matrix, classes: Sequence[int]) -> dict[str, float]:
    """All scalar metrics, by the names under which they are written."""
    return {
        "A_weighted": average_accuracy(matrix, classes, weighted=True),
        "A_plain": average_accuracy(matrix, classes, weighted=False),
        "F_weighted": forgetting(matrix, classes, weighted=True),
        "F_plain": forgetting(matrix, classes, weighted=False),
        "F_paper": forgetting_over_all_tasks(matrix),
        "last_accuracy": step_accuracies(matrix, classes, weighted=True)[-1],
    }


DEFINITIONS = {
    "A_weighted": "accuracy over all classes seen, averaged over steps (the base task included)",
    "A_plain": "mean over tasks of the accuracy on each, averaged over steps",
    "F_weighted": "best earlier accuracy minus the last, per past task, averaged by number of classes",
    "F_plain": "the same, averaged over past tasks (Chaudhry)",
    "F_paper": "the same, summed over past tasks and divided by the number of all tasks",
    "last_accuracy": "accuracy over all classes after the last task",
}
