"""The result of evaluating a classifier after a task."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Evaluation:
    """Accuracies on test images after a task; all classes seen so far compete for each prediction."""

    accuracies: list[float]  # one per evaluated task
    task_aware: list[float]  # the same where only the classes of the image's own task compete
    confusion: list[list[int]]  # [true class][predicted class], image counts
    images: int  # evaluated images
    accuracy: float  # over all of them

    def without_confusion(self) -> "Evaluation":
        """The same numbers with an empty confusion matrix: only the latest one is worth its size."""
        return Evaluation(self.accuracies, self.task_aware, [], self.images, self.accuracy)
