"""Choosing rows of a labeled set of images from its labels alone."""

import torch
from torch import Tensor

HOLD_OUT_EVERY = 5


def hold_out_rows(labels: Tensor, every: int = HOLD_OUT_EVERY) -> tuple[Tensor, Tensor]:
    """Return (training rows, held-out rows), both ascending: every `every`-th image of each class is held out. A class
    with fewer than `every` images gives its last one; a class with a single image gives none."""
    position, size = _position_in_class(labels), labels.bincount()[labels]
    held_out = torch.where(size < every, (position == size - 1) & (size > 1), position % every == every - 1)
    return (~held_out).nonzero().flatten(), held_out.nonzero().flatten()


def first_rows_per_class(labels: Tensor, count: int | None) -> Tensor:
    """Return the rows of the first `count` images of each class, ascending; all rows if `count` is None."""
    limit = len(labels) if count is None else count
    return (_position_in_class(labels) < limit).nonzero().flatten()


def drawn_rows_per_class(labels: Tensor, count: int | None, generator: torch.Generator) -> Tensor:
    """Return the rows of `count` images of each class, drawn at random, ascending; all rows if `count` is None."""
    order = torch.randperm(len(labels), generator=generator)
    return order[first_rows_per_class(labels[order], count)].sort().values


def pick_rows(labels: Tensor, limit: int) -> Tensor:
    """At most `limit` rows, class by class, equally many of each class (or only the first classes)."""
    classes = sorted(set(labels.tolist()))[:limit]
    share = limit // len(classes)
    return torch.cat([(labels == label).nonzero().flatten()[:share] for label in classes])


def _position_in_class(labels: Tensor) -> Tensor:
    """Return how many earlier rows have the same label, for each row."""
    order = labels.argsort(stable=True)
    sizes = labels.bincount()
    starts = sizes.cumsum(0) - sizes
    position = torch.empty_like(order)
    position[order] = torch.arange(len(order)) - starts[labels[order]]
    return position
