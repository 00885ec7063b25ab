"""Evaluating a classifier after a task: one pass over test images."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from etag.core.evaluation import Evaluation
from etag.core.precision import at_least_single
from etag.core.scenario import Task
from etag.core.work import Batch, Batches, DataPass
from etag.models.classifier import Classifier


class _Predictions(nn.Module):
    """For each image its label, the prediction, and the prediction among the classes of its own task."""

    def __init__(self, classifier: Classifier, task_sizes: Sequence[int], scores: bool) -> None:
        super().__init__()
        self.classifier, self._scores = classifier, scores
        self._task_of_class = torch.tensor([task for task, size in enumerate(task_sizes) for _ in range(size)])

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        features = self.classifier.backbone(batch.inputs)
        with torch.autocast(features.device.type, enabled=False):  # as `etag predict`: in half precision scores may tie
            scores, familiarity = self.classifier.predict_from(at_least_single(features))
        tasks = self._task_of_class.to(scores.device)
        other_task = tasks[None, :] != tasks[batch.labels][:, None]
        task_aware = scores[:, : len(tasks)].masked_fill(other_task, -torch.inf).argmax(1)
        result = {"label": batch.labels, "prediction": scores.argmax(1), "task_aware": task_aware}
        return result | {"scores": scores, "familiarity": familiarity} if self._scores else result


def predictions_pass(
    batches: Batches, classifier: Classifier, task_sizes: Sequence[int], scores: bool = False
) -> DataPass:
    """The pass whose result `evaluate` reads; with `scores` it also returns the log-probabilities of each image, and
    how familiar it is."""
    return DataPass("evaluation", _Predictions(classifier, task_sizes, scores), batches)


def evaluate(predictions: dict[str, Tensor], tasks: Sequence[Task]) -> Evaluation:
    """Accuracies and confusion matrix from the predictions for the test images of `tasks`, task by task."""
    label, prediction, task_aware = (predictions[name].cpu() for name in ("label", "prediction", "task_aware"))
    classes = tasks[-1].num_seen
    of_task = torch.split(torch.arange(len(label)), [len(task.test) for task in tasks])
    # a prediction beyond the seen classes (only a fixed head can make one) is wrong, and in no column
    known = prediction < classes
    counts = (label * classes + prediction)[known].bincount(minlength=classes * classes)
    right = (prediction == label).double()
    return Evaluation(
        accuracies=[right[rows].mean().item() for rows in of_task],
        task_aware=[(task_aware[rows] == label[rows]).double().mean().item() for rows in of_task],
        confusion=counts.view(classes, classes).tolist(),
        images=len(label),
        accuracy=right.mean().item(),
    )
