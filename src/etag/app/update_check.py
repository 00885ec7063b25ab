"""What an update of known classes did to every group of classes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from etag.core.scenario import Task
from etag.engine.engine import Engine
from etag.evaluation.evaluate import evaluate, predictions_pass
from etag.learner.learner import Learner
from etag.learner.versions import Name
from etag.methods.abilities import GeneratesFeatures, UpdatesExactly

GENERATED = 100  # features per class
DROP = 0.05  # of the accuracy of a group, from which users are warned


@dataclass(frozen=True)
class GroupChange:
    """The accuracy on generated features of some classes before and after an update."""

    lesson: int  # the number of the lesson in which they were learned
    classes: tuple[Name, ...]
    before: float
    after: float

    @property
    def is_drop(self) -> bool:
        """Whether the accuracy fell so far that users should know."""
        return self.after < self.before - DROP


@dataclass(frozen=True)
class UpdateReport:
    """How an update changed the model."""

    before: dict[Name, int]  # right predictions of the updated classes' held-out images, before the update
    others: list[GroupChange]  # classes that were not updated; none if the update is exact, or nothing is generated
    exact: bool  # whether the model is as if all images had been learned at once

    @property
    def harmed(self) -> list[GroupChange]:
        """The groups whose accuracy fell."""
        return [group for group in self.others if group.is_drop]


class UpdateCheck:
    """Measures a model before an update and after it: updated classes on their held-out images, other classes on
    features that were generated before the update."""

    def __init__(self, learner: Learner, task: Task, names: tuple[Name, ...]) -> None:
        self._learner, self._names = learner, names
        method, about = learner.method, learner.about
        batches = method.pass_batches("evaluation", task.test)
        passed = predictions_pass(batches, method.classifier(), method.task_sizes)
        confusion = evaluate(Engine(learner.runtime).run_pass(passed), [task]).confusion
        self._right = {name: confusion[place][place] for name, place in self._places(names).items()}
        self._exact = isinstance(method, UpdatesExactly)
        self._groups = [
            (number, others)
            for number, lesson in enumerate(about.history, start=1)
            if lesson.kind == "learn" and (others := tuple(name for name in lesson.classes if name not in names))
        ]
        self._labels = torch.tensor([place for _, own in self._groups for place in self._places(own).values()]).long()
        self._labels = self._labels.repeat_interleave(GENERATED)
        self._features = self._generated()
        self._before = self._accuracies()

    def report(self) -> UpdateReport:
        """Compare with the model as it is now."""
        pairs = zip(self._groups, self._before, self._accuracies(), strict=False)  # none without features
        groups = [GroupChange(number, classes, before, after) for (number, classes), before, after in pairs]
        return UpdateReport(self._right, groups, self._exact)

    def _places(self, names: tuple[Name, ...]) -> dict[Name, int]:
        return {name: self._learner.about.classes.index(name) for name in names}

    def _generated(self) -> Tensor | None:
        method = self._learner.method
        if self._exact or not len(self._labels) or not isinstance(method, GeneratesFeatures):
            return None
        return method.generate_features(self._labels)

    @torch.no_grad()
    def _accuracies(self) -> list[float]:
        """The accuracy on the generated features of each group; none without features."""
        if self._features is None:
            return []
        predicted = self._learner.method.classifier().classify(self._features).argmax(1).cpu()
        sizes = [GENERATED * len(classes) for _, classes in self._groups]
        return [rows.double().mean().item() for rows in torch.split(predicted == self._labels, sizes)]
