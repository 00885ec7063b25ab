"""Judging a method after a task: one pass over the test images of every class seen."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from etag.core.outputs import Outputs, Predictor
from etag.core.random import Placement, Stream
from etag.core.scenario import ImageSet, Task
from etag.core.work import Batch, DataPass
from etag.data.batches import ImageBatches
from etag.data.preprocess import Preprocess
from etag.models.solver import Features, Solver

BATCH = 512


class _Answers(nn.Module):
    """Per image: its label, the answer, and the answer where only the classes of its own task compete."""

    def __init__(self, solver: nn.Module, predictor: Predictor, task_of_class: Tensor) -> None:
        super().__init__()
        self.solver, self._predictor = solver, predictor
        self.task_of_class = task_of_class

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        outputs: Outputs = self.solver(batch.inputs, self._predictor.need)
        scores = self._predictor(outputs)
        tasks = self.task_of_class.to(scores.device)
        known = scores[:, : len(tasks)]
        foreign = tasks[None, :] != tasks[batch.labels][:, None]
        within = known.masked_fill(foreign, -torch.inf).argmax(1)
        return {"label": batch.labels, "answer": scores.argmax(1), "within": within}


def _test_batches(images: ImageSet, preprocess: Preprocess, placement: Placement) -> ImageBatches:
    stream = Stream.root(0)  # nothing is drawn
    return ImageBatches(images, preprocess, BATCH, stream, placement, augment=False, shuffle=False)


def predictions_pass(
    tasks: Sequence[Task],
    solver: nn.Module,
    predictor: Predictor,
    preprocess: Preprocess,
    placement: Placement,
) -> DataPass:
    """The pass whose result `judge` reads."""
    first, *later = (task.test for task in tasks)
    task_of_class = torch.tensor([task.index for task in tasks for _ in range(task.new)])
    module = _Answers(solver, predictor, task_of_class)
    return DataPass("evaluation", module, _test_batches(first.join(later), preprocess, placement))


class _Scores(nn.Module):
    """Per image: its label, and the predictor's scores."""

    def __init__(self, solver: nn.Module, predictor: Predictor) -> None:
        super().__init__()
        self.solver, self._predictor = solver, predictor

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        outputs: Outputs = self.solver(batch.inputs, self._predictor.need)
        return {"labels": batch.labels, "scores": self._predictor(outputs)}


def scores_pass(
    images: ImageSet, solver: nn.Module, predictor: Predictor, preprocess: Preprocess, placement: Placement
) -> DataPass:
    """A predictor's scores of images, in their order."""
    return DataPass("evaluation", _Scores(solver, predictor), _test_batches(images, preprocess, placement))


def features_pass(images: ImageSet, solver: Solver, preprocess: Preprocess, placement: Placement) -> DataPass:
    """Features of test images, for the picture of the embedding."""
    return DataPass("embedding", Features(solver), _test_batches(images, preprocess, placement))


@dataclass(frozen=True)
class Evaluation:
    """What a method can do after a task."""

    accuracies: list[float]  # per task so far, all classes seen competing
    task_aware: list[float]  # per task so far, the task of each image being known
    confusion: list[list[int]]  # [true class][answer]


def judge(answers: dict[str, Tensor], tasks: Sequence[Task]) -> Evaluation:
    """Accuracies and confusion from the labels and answers of the test images of `tasks`, task by task."""
    label, answer, within = (answers[name].cpu() for name in ("label", "answer", "within"))
    classes = tasks[-1].seen
    of_task = torch.split(torch.arange(len(label)), [len(task.test) for task in tasks])
    # an answer beyond the classes seen (only a head declared in full can give one) is wrong, and in no column
    known = answer < classes
    counts = (label * classes + answer)[known].bincount(minlength=classes * classes)
    return Evaluation(
        accuracies=[(answer[rows] == label[rows]).double().mean().item() for rows in of_task],
        task_aware=[(within[rows] == label[rows]).double().mean().item() for rows in of_task],
        confusion=counts.view(classes, classes).tolist(),
    )
