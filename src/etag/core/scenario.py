"""Tasks and scenarios: the sequence of labeled images that a method learns from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol, Self

import torch
from torch import Tensor


class ImageSet(Protocol):
    """Labeled images that are read by row, as uint8 of shape (n, channels, height, width); or their features, as
    float32 of shape (n, size)."""

    @property
    def labels(self) -> Tensor:
        """Class number of each image."""

    @property
    def holds_features(self) -> bool:
        """Whether `read` yields features of a frozen backbone in place of images."""

    def __len__(self) -> int: ...

    def read(self, row_batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield the images of each tensor of rows, in order; they may be read in advance."""

    def select(self, rows: Tensor) -> Self:
        """Return a set of these rows only."""

    def join(self, others: "list[Self]") -> Self:
        """Return this set followed by the others as one set."""


@dataclass(frozen=True)
class Task:
    """One task of a scenario: labels below `num_old` are old classes, those from `num_old` to `num_seen` - 1 are new. A
    later task with `num_new` = 0 has images of the old classes from another domain."""

    index: int
    num_old: int
    num_new: int
    train: ImageSet
    test: ImageSet
    num_base: int  # number of classes of the first task

    @property
    def num_seen(self) -> int:
        """Number of classes known after this task."""
        return self.num_old + self.num_new

    @property
    def num_present(self) -> int:
        """Number of classes that its images belong to."""
        return self.num_new or self.num_seen

    def holding_out(self, share: float) -> "tuple[Task, ImageSet | None]":
        """The task without the last `share` of each class's training images, and these images if there are any."""
        if share == 0:
            return self, None
        train_rows, held_out_rows = [], []
        for label in sorted(set(self.train.labels.tolist())):
            rows = (self.train.labels == label).nonzero().flatten()
            cut = len(rows) - round(share * len(rows))
            train_rows.append(rows[:cut])
            held_out_rows.append(rows[cut:])
        rows = torch.cat(held_out_rows).sort().values
        if not len(rows):
            return self, None
        return replace(self, train=self.train.select(torch.cat(train_rows).sort().values)), self.train.select(rows)


@dataclass(frozen=True)
class Scenario:
    """An ordered list of tasks, and the properties that all of them share."""

    name: str
    split: str
    tasks: tuple[Task, ...]
    classes: tuple[str, ...]  # class names by label
    channels: int
    size: int  # side of the network's input in pixels

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def new_classes_per_task(self) -> list[int]:
        """Number of new classes of each task."""
        return [task.num_new for task in self.tasks]

    @property
    def classes_present_per_task(self) -> list[int]:
        """Number of classes in the images of each task, which is the weight of its accuracy."""
        return [task.num_present for task in self.tasks]

    def training_image_counts(self, all_data: bool) -> list[int]:
        """Return the number of training images of each task, or with `all_data` of all tasks up to it."""
        counts = [len(task.train) for task in self.tasks]
        return list(accumulate(counts)) if all_data else counts

    def training_task(self, task: Task, all_data: bool) -> Task:
        """Return the task; with `all_data` (method `joint`) its training images are those of all tasks up to it."""
        if not all_data:
            return task
        first, *later = (t.train for t in self.tasks[: task.index + 1])
        return replace(task, train=first.join(later))
