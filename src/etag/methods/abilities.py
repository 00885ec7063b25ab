"""What only some methods can do. Callers ask with isinstance; `etag methods` lists who can."""

from typing import Protocol, runtime_checkable

from torch import Tensor

from etag.core.scenario import Task
from etag.core.work import Plan
from etag.models.familiarity import Familiarity


@runtime_checkable
class CanUpdate(Protocol):
    """Can learn more images of classes it already knows."""

    def update(self, task: Task, number: int) -> Plan:
        """The work of learning them; `number` counts earlier lessons, so that random draws differ."""


@runtime_checkable
class UpdatesExactly(CanUpdate, Protocol):
    """After `update` it is as if all images had been learned at once: it can learn held-out images, too, once they have
    been evaluated."""

    updates_exactly: bool


@runtime_checkable
class CanForget(Protocol):
    """Can remove a class from everything it stores."""

    def forget(self, label: int) -> str:
        """Remove the class; the labels after it move down by one. Returns what remains of it, in words; an empty text
        if nothing does."""


@runtime_checkable
class GeneratesFeatures(Protocol):
    """Can generate features of the classes it knows."""

    def generate_features(self, labels: Tensor) -> Tensor | None:
        """One feature per label; None where all features of a class would be the same."""


@runtime_checkable
class MeasuresFamiliarity(Protocol):
    """Can tell from class statistics how familiar a feature is; other methods go by the highest probability."""

    familiarity: Familiarity  # of the classes so far; a part of the classifier


@runtime_checkable
class GeneratesImages(Protocol):
    """Can generate images of the classes it knows."""

    def generate_images(self, rows: int, columns: int) -> Tensor | None:
        """Pixels between 0 and 1, row by row; the images of a row are of one class where the method can choose it. None
        before there is anything to generate."""
