"""Images in memory, as uint8."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class MemoryImages:
    """A labelled set of images of one size that lives in one tensor."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, rows: Tensor) -> Tensor:
        """The images of these rows."""
        return self.pixels.index_select(0, rows)

    def select(self, rows: Tensor) -> Self:
        """A set of these rows only."""
        return type(self)(self.pixels[rows], self.labels[rows])

    def join(self, others: list[Self]) -> Self:
        """One set of this and the others, in order."""
        sets = [self, *others]
        return type(self)(torch.cat([s.pixels for s in sets]), torch.cat([s.labels for s in sets]))

    def first_per_class(self, count: int | None) -> Self:
        """The first `count` images of each class, in their order; all of them if None."""
        if count is None:
            return self
        order = self.labels.argsort(stable=True)
        sizes = self.labels.bincount()
        starts = sizes.cumsum(0) - sizes
        place = torch.empty_like(order)  # how many of the same class come before
        place[order] = torch.arange(len(order)) - starts[self.labels[order]]
        return self.select((place < count).nonzero().flatten())
