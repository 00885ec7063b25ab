"""Decoding every file once, completely, before anything is learned from the first: damaged files are found together."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from etag.data.decode import THUMBNAIL, Pixels, UnreadableImage, inspect
from etag.data.images import unreadable_error

BATCH = 16  # files
FEWEST = 64  # files per process: to start a process takes as long as to decode a few
Sides = np.ndarray[Any, np.dtype[np.int64]]
Inspected = tuple[Pixels, Sides, list[str]]  # of a batch: thumbnails, shorter sides, and why a file is unreadable or ""


@dataclass(frozen=True)
class Inspection:
    """What was seen when files were decoded completely. Thumbnail and side of an unreadable file are zero."""

    files: list[str]
    thumbnails: Pixels  # (files, 32, 32), gray
    sides: Sides  # pixels of the shorter side of each image
    unreadable: dict[str, str]  # files that cannot be decoded, and why

    def check(self, advice: str = "") -> None:
        """Raise one error that lists all unreadable files, if there are any; `advice` says what else can be done."""
        if self.unreadable:
            raise unreadable_error([f"{file} ({reason})" for file, reason in self.unreadable.items()], advice)


def inspect_files(
    files: Sequence[str], workers: int | None = None, on_progress: Callable[[int], None] = lambda _: None
) -> Inspection:
    """Decode files completely in several processes, by default one per core; tell `on_progress` how many are done."""
    files = list(files)
    batches = [files[start : start + BATCH] for start in range(0, len(files), BATCH)]
    count = min(cores() if workers is None else workers, len(files) // FEWEST)
    count = 0 if count == 1 else count  # this process would only wait for it
    thumbnails, sides = np.zeros((len(files), THUMBNAIL, THUMBNAIL), np.uint8), np.zeros(len(files), np.int64)
    unreadable: dict[str, str] = {}
    done = 0
    loader = DataLoader(
        _Inspector(batches),
        batch_size=None,  # whole batches are the samples
        num_workers=count,
        collate_fn=_unchanged,  # no tensors, which would go through shared memory
        generator=torch.Generator(),  # else it would use the global one
    )
    for own_thumbnails, own_sides, reasons in loader:
        rows = slice(done, done + len(reasons))
        thumbnails[rows], sides[rows] = own_thumbnails, own_sides
        unreadable |= {file: reason for file, reason in zip(files[rows], reasons, strict=True) if reason}
        done += len(reasons)
        on_progress(done)
    return Inspection(files, thumbnails, sides, unreadable)


def cores() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _unchanged(batch: object) -> object:
    return batch


class _Inspector(Dataset[Inspected]):
    """Decodes the files of one batch at a time."""

    def __init__(self, batches: list[list[str]]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, place: int) -> Inspected:
        files = self._batches[place]
        thumbnails, sides = np.zeros((len(files), THUMBNAIL, THUMBNAIL), np.uint8), np.zeros(len(files), np.int64)
        reasons = [""] * len(files)
        for row, file in enumerate(files):
            try:
                thumbnails[row], sides[row] = inspect(file)
            except UnreadableImage as reason:
                reasons[row] = str(reason)
        return thumbnails, sides, reasons
