"""Sets of labeled images: in memory as uint8, or in files that worker processes decode ahead."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from etag.core.errors import EtagError
from etag.core.scenario import ImageSet
from etag.data.decode import UnreadableImage, decode


@dataclass(frozen=True)
class MemoryImages:
    """Images of one size that live in one tensor."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """The images of each list of rows."""
        return (self.pixels.index_select(0, rows) for rows in batches)

    def select(self, rows: Tensor) -> Self:
        """A set of these rows only."""
        return replace(self, pixels=self.pixels[rows], labels=self.labels[rows])

    def join(self, others: list[Self]) -> Self:
        """One set of this and the others, in order."""
        sets = [self, *others]
        return replace(self, pixels=torch.cat([s.pixels for s in sets]), labels=torch.cat([s.labels for s in sets]))

    def relabeled(self, labels: Tensor) -> Self:
        """The same images, labeled otherwise."""
        return replace(self, labels=labels)

    def resized(self, side: int) -> Self:
        """The images at side x side pixels."""
        if self.pixels.shape[-2:] == (side, side):
            return self
        pixels = functional.interpolate(self.pixels, (side, side), mode="bilinear", antialias=True)
        return replace(self, pixels=pixels)


@dataclass(frozen=True)
class FileImages:
    """Images in files, decoded when they are asked for, a few batches ahead, by worker processes."""

    files: np.ndarray[Any, np.dtype[np.str_]]
    labels: Tensor
    side: int
    workers: int
    channels: int = 3  # 1 decodes them in gray

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """The images of each list of rows, in order."""
        for _, pixels, unreadable in self.readable(batches):
            if unreadable:
                raise unreadable_error(unreadable)
            yield pixels

    def readable(self, batches: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor, list[str]]]:
        """Of each list of rows those that can be read, their images, and complaints about the others."""
        reading = iter(self._decoded(batches))
        try:
            for rows, (pixels, places, unreadable) in zip(batches, reading, strict=True):
                yield rows[places], pixels, unreadable
        finally:
            del reading  # ends the workers, also where the reading is cut short

    def select(self, rows: Tensor) -> Self:
        """A set of these rows only."""
        return replace(self, files=self.files[rows.numpy()], labels=self.labels[rows])

    def join(self, others: list[Self]) -> Self:
        """One set of this and the others, in order."""
        sets = [self, *others]
        files = np.concatenate([s.files for s in sets])
        return replace(self, files=files, labels=torch.cat([s.labels for s in sets]))

    def relabeled(self, labels: Tensor) -> Self:
        """The same images, labeled otherwise."""
        return replace(self, labels=labels)

    def resized(self, side: int) -> Self:
        """The images at side x side pixels."""
        return replace(self, side=side)

    @property
    def nbytes(self) -> int:
        """What they would take in memory."""
        return len(self) * self.channels * self.side**2

    def in_memory(self) -> MemoryImages:
        """All of them, decoded now. Files that cannot be read are told all at once."""
        # filled piece by piece: keeping what workers send would keep a file open for each piece
        pixels = torch.empty(len(self), self.channels, self.side, self.side, dtype=torch.uint8)
        done, unreadable = 0, []
        for _, piece, failed in self.readable(torch.split(torch.arange(len(self)), 64)):
            pixels[done : done + len(piece)] = piece
            done += len(piece)
            unreadable += failed
        if unreadable:
            raise unreadable_error(unreadable)
        return MemoryImages(pixels, self.labels)

    def _decoded(self, batches: Sequence[Tensor]) -> "DataLoader[Tensor | str]":
        return DataLoader(
            _Files(self.files, self.side, self.channels),
            batch_sampler=[rows.tolist() for rows in batches],
            num_workers=min(self.workers, len(batches)),
            collate_fn=partial(_stack, self.side, self.channels),
            generator=torch.Generator(),  # or it would draw from the global one
        )


@dataclass(frozen=True)
class MixedImages:
    """Some rows of several sets of different kinds, such as files and exemplars in memory, as one set."""

    sets: tuple[ImageSet, ...]
    rows: Tensor  # counted over the sets, one after the other

    @classmethod
    def of(cls, *sets: ImageSet) -> Self:
        """All images of the sets."""
        return cls(sets, torch.arange(sum(map(len, sets))))

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def labels(self) -> Tensor:
        """The class of each image."""
        return torch.cat([part.labels for part in self.sets])[self.rows]

    def batches(self, batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """The images of each list of rows, in order: every set reads ahead its own rows of them."""
        wanted = [self.rows[rows] for rows in batches]
        start, masks, reading = 0, [], []
        for part in self.sets:
            masks.append([(rows >= start) & (rows < start + len(part)) for rows in wanted])
            reading.append(part.batches([rows[own] - start for rows, own in zip(wanted, masks[-1], strict=True)]))
            start += len(part)
        for rows, own, pieces in zip(wanted, zip(*masks, strict=True), zip(*reading, strict=True), strict=True):
            pixels = pieces[0].new_empty(len(rows), *pieces[0].shape[1:])
            for mask, piece in zip(own, pieces, strict=True):
                pixels[mask] = piece
            yield pixels

    def select(self, rows: Tensor) -> Self:
        """A set of these rows only."""
        return replace(self, rows=self.rows[rows])

    def join(self, others: list[Self]) -> Self:
        """One set of this and the others, in order."""
        return type(self).of(self, *others)


def concat_images(first: ImageSet, second: ImageSet) -> ImageSet:
    """One set of two, whatever their kinds."""
    if isinstance(first, MemoryImages) and isinstance(second, MemoryImages):
        return first.join([second])
    return MixedImages.of(first, second)


class _Files(Dataset[Tensor | str]):
    """One decoded image an index; the complaint instead, where a file cannot be read."""

    def __init__(self, files: np.ndarray[Any, np.dtype[np.str_]], side: int, channels: int) -> None:
        self._files, self._side, self._channels = files, side, channels

    def __getitem__(self, index: int) -> Tensor | str:
        try:
            return torch.from_numpy(decode(self._files[index], self._side, self._channels))
        except UnreadableImage as reason:
            return f"{self._files[index]} ({reason})"


def _stack(side: int, channels: int, images: list[Tensor | str]) -> tuple[Tensor, list[int], list[str]]:
    """Those that could be read, in one tensor, their places, and the complaints about the others."""
    pixels = [image for image in images if isinstance(image, Tensor)]
    places = [place for place, image in enumerate(images) if isinstance(image, Tensor)]
    none = torch.empty(0, channels, side, side, dtype=torch.uint8)
    return torch.stack(pixels) if pixels else none, places, [image for image in images if isinstance(image, str)]


def unreadable_error(unreadable: list[str]) -> EtagError:
    """The error that tells of all of them."""
    which, them = ("1 image file", "it") if len(unreadable) == 1 else (f"{len(unreadable)} image files", "them")
    return EtagError(f"{which} cannot be read: {', '.join(unreadable)}; replace or remove {them}.")
