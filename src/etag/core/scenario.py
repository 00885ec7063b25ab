"""Tasks: what a learner is given, one after the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol, Self

import torch
from torch import Tensor


class ImageSet(Protocol):
    """Labeled images that can be read by rows, as uint8 of shape (n, channels, height, width)."""

    @property
    def labels(self) -> Tensor:
        """The class of each image."""

    def __len__(self) -> int: ...

    def batches(self, batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """The images of each list of rows, in order; they may be read ahead."""

    def select(self, rows: Tensor) -> Self:
        """A set of these rows only."""

    def join(self, others: "list[Self]") -> Self:
        """One set of this and the others, in order."""


@dataclass(frozen=True)
class Task:
    """One step of a scenario. Labels count the classes in the order they arrive: old ones 0 .. old - 1.

    A task without new classes (but for the first) shows the old ones anew: another domain.
    """

    index: int
    old: int
    new: int
    train: ImageSet
    test: ImageSet
    base: int  # classes of the first task

    @property
    def seen(self) -> int:
        """Classes known once this task is learned."""
        return self.old + self.new

    @property
    def present(self) -> int:
        """Classes that its images show."""
        return self.new or self.seen

    def holding_out(self, share: float) -> "tuple[Task, ImageSet | None]":
        """This task without the last `share` of every class, and that share (None if it is empty)."""
        if share == 0:
            return self, None
        kept, held = [], []
        for label in sorted(set(self.train.labels.tolist())):
            rows = (self.train.labels == label).nonzero().flatten()
            cut = len(rows) - round(share * len(rows))
            kept.append(rows[:cut])
            held.append(rows[cut:])
        rows = torch.cat(held).sort().values
        if not len(rows):
            return self, None
        return replace(self, train=self.train.select(torch.cat(kept).sort().values)), self.train.select(rows)


@dataclass(frozen=True)
class Scenario:
    """An ordered list of tasks, with what is known of the data as a whole."""

    name: str
    split: str
    tasks: tuple[Task, ...]
    classes: tuple[str, ...]  # names, in the order of labels
    channels: int
    size: int

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def classes_per_task(self) -> list[int]:
        """How many classes each task brings."""
        return [task.new for task in self.tasks]

    @property
    def classes_in_task(self) -> list[int]:
        """How many classes the images of each task show: the weight of its accuracy."""
        return [task.present for task in self.tasks]

    def images_given(self, all_data: bool) -> list[int]:
        """How many training images a method is given with each task."""
        counts = [len(task.train) for task in self.tasks]
        return list(accumulate(counts)) if all_data else counts

    def given(self, task: Task, all_data: bool) -> Task:
        """The task as a method is given it: with its own training images, or (Joint) those of all tasks up to it."""
        if not all_data:
            return task
        first, *later = (t.train for t in self.tasks[: task.index + 1])
        return replace(task, train=first.join(later))
