"""What is measured in a run, task by task."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from etag.core.scenario import Scenario
from etag.evaluation.evaluate import Evaluation
from etag.evaluation.metrics import step_accuracies, summary


@dataclass
class Record:
    """What was measured, task by task."""

    evaluations: list[Evaluation] = field(default_factory=list)
    train_seconds: list[float] = field(default_factory=list)
    test_seconds: list[float] = field(default_factory=list)

    def add(self, evaluation: Evaluation, train_seconds: float, test_seconds: float) -> None:
        """After a task."""
        self.evaluations.append(evaluation)
        self.train_seconds.append(round(train_seconds, 3))
        self.test_seconds.append(round(test_seconds, 3))

    def plain(self) -> dict[str, Any]:
        """As it is written to disk; of the confusions only the last one matters."""
        *earlier, last = self.evaluations
        return asdict(replace(self, evaluations=[*(replace(j, confusion=[]) for j in earlier), last]))

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> Self:
        """The other way."""
        evaluations = [Evaluation(**evaluation) for evaluation in values["judgements"]]
        return cls(evaluations, list(values["train_seconds"]), list(values["test_seconds"]))

    @property
    def matrix(self) -> list[list[float]]:
        """Row t: the accuracies on tasks 0 .. t."""
        return [evaluation.accuracies for evaluation in self.evaluations]

    def line(self, scenario: Scenario) -> str:
        """The last task in a few words."""
        number, classes = len(self.evaluations), scenario.classes_per_task
        accuracy = step_accuracies(self.matrix, scenario.classes_in_task, weighted=True)[-1]
        return (
            f"task {number}/{len(scenario)}: {sum(classes[:number])} classes, accuracy {accuracy:.1%} over all of "
            f"them, {self.train_seconds[-1]:.1f} s"
        )

    def metrics(self, scenario: Scenario) -> dict[str, Any]:
        """All that is judged. Matrices are square, with null where a task was not learned yet."""
        classes = scenario.classes_in_task
        return summary(self.matrix, classes) | {
            "accuracy_matrix": _square(self.matrix),
            "task_aware_matrix": _square([evaluation.task_aware for evaluation in self.evaluations]),
            "step_accuracy_weighted": step_accuracies(self.matrix, classes, weighted=True),
            "step_accuracy_plain": step_accuracies(self.matrix, classes, weighted=False),
            "classes_per_task": scenario.classes_per_task,
            "classes_in_task": classes,
            "class_names": list(scenario.classes),
            "confusion": self.evaluations[-1].confusion,
            "train_seconds": self.train_seconds,
            "test_seconds": self.test_seconds,
        }


def _square(rows: list[list[float]]) -> list[list[float | None]]:
    return [[*row, *[None] * (len(rows) - len(row))] for row in rows]
