"""Batches of images, of cached features or of random codes; reading can start at any epoch and step."""

from collections.abc import Iterator
from copy import copy
from typing import Self

import torch
from torch import Tensor

from etag.core.errors import EtagError
from etag.core.random import Draws, Placement, Stream
from etag.core.scenario import ImageSet
from etag.core.work import Batch
from etag.data.preprocess import Preprocess


class _RowBatches:
    """Base class: chooses the rows of each batch of an epoch, shuffled or not, with or without the short last one."""

    def __init__(
        self, rows: int, size: int, stream: Stream, placement: Placement, shuffle: bool = True, drop_last: bool = False
    ) -> None:
        if shuffle and size % placement.world:
            raise EtagError(
                f"batch_size={size} cannot be divided evenly among {placement.world} processes: choose a multiple of "
                f"{placement.world}."
            )
        self._rows, self._size, self._stream, self._placement = rows, size, stream, placement
        # in training every process gets equally many rows, so that the mean over processes is the batch mean
        self._used = rows - rows % placement.world if shuffle else rows
        if self._used == 0:
            raise EtagError(
                f"{rows} images are too few for a batch on {placement.world} process(es): add images or use fewer "
                "processes."
            )
        self._shuffle, self._drop_last = shuffle, drop_last and self._used >= size

    def __len__(self) -> int:
        return self._used // self._size if self._drop_last else -(-self._used // self._size)

    def unshared(self) -> Self:
        """The same batches, each of them whole in every process."""
        batches = copy(self)
        batches._placement = Placement(self._placement.device)
        return batches

    def _steps(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Draws, int]]:
        """Yield for each step: the rows of this process, the step's random draws, the size of the global batch."""
        order = torch.arange(self._rows)
        if self._shuffle:
            order = torch.randperm(self._rows, generator=self._stream.torch_generator("order", epoch))
        for step in range(start, len(self)):
            rows = order[step * self._size : min((step + 1) * self._size, self._used)]
            draws = Draws(self._stream.child("epoch", epoch, "step", step), self._placement)
            yield rows[self._placement.own_rows(len(rows))], draws, len(rows)


class ImageBatches(_RowBatches):
    """Batches of normalized images, augmented if `augment` is true and the data allow it (`Preprocess.augment`).
    Features in place of images are returned as they are."""

    def __init__(
        self,
        images: ImageSet,
        preprocess: Preprocess,
        size: int,
        stream: Stream,
        placement: Placement,
        *,
        augment: bool = True,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        super().__init__(len(images), size, stream, placement, shuffle, drop_last)
        self.images, self._preprocess, self._augment = images, preprocess, augment

    @property
    def facts(self) -> tuple[object, ...]:
        """Everything besides the images that its batches depend on."""
        rows = (self._rows, self._size, self._stream.key, self._placement.world, self._shuffle, self._drop_last)
        return (*rows, self._preprocess, self._augment, self.images.holds_features)

    @property
    def smallest(self) -> int:
        """Number of rows that the smallest batch of an epoch has on one process."""
        last = self._used % self._size
        return (self._size if self._drop_last or not last else last) // self._placement.world

    def epoch(self, index: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch, beginning with batch number `start`."""
        device, preprocess = self._placement.device, self._preprocess
        steps = list(self._steps(index, start))
        batches = self.images.read([rows for rows, _, _ in steps])
        for (rows, draws, total), pixels in zip(steps, batches, strict=True):
            pixels = pixels.to(device, non_blocking=True)
            if self.images.holds_features:
                inputs = pixels
            else:
                inputs = preprocess.augmented(pixels, draws, total) if self._augment else preprocess.centered(pixels)
            yield Batch(inputs, self.images.labels[rows].to(device, non_blocking=True), draws, total)


class FeatureBatches(_RowBatches):
    """Batches of cached features. `features` (passes, images, feature) has one or more passes over the same images,
    each with its own augmentation; epochs use them in turn."""

    def __init__(
        self, features: Tensor, labels: Tensor, size: int, stream: Stream, placement: Placement, drop_last: bool = False
    ) -> None:
        super().__init__(len(labels), size, stream, placement, drop_last=drop_last)
        self._features, self._labels = features, labels

    def epoch(self, index: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch, beginning with batch number `start`."""
        features = self._features[index % len(self._features)]
        for rows, draws, total in self._steps(index, start):
            rows = rows.to(features.device)
            yield Batch(features[rows], self._labels[rows], draws, total)


class ClassBatches(_RowBatches):
    """Batches of cached features with one feature of every class per row: (rows, classes, feature). An epoch is one
    pass over the largest class; features of smaller classes are repeated."""

    def __init__(self, features: Tensor, labels: Tensor, size: int, stream: Stream, placement: Placement) -> None:
        counts: list[int] = labels.bincount().tolist()
        super().__init__(max(counts), size, stream, placement)
        self._features, self._class_rows = features, torch.split(labels.argsort(stable=True).cpu(), counts)

    def epoch(self, index: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch, beginning with batch number `start`; their labels are unused zeros."""
        stream = self._stream.child("classes", index)
        orders = [
            rows[torch.randperm(len(rows), generator=stream.torch_generator(label))]
            for label, rows in enumerate(self._class_rows)
        ]
        for positions, draws, total in self._steps(index, start):
            rows = torch.stack([order[positions % len(order)] for order in orders], dim=1)
            inputs = self._features[rows.to(self._features.device)]
            yield Batch(inputs, torch.zeros(len(inputs), dtype=torch.long, device=inputs.device), draws, total)


class CodeBatches:
    """Batches of standard normal latent codes, drawn again at each of `steps` steps; no data is read."""

    def __init__(self, steps: int, size: int, latent: int, stream: Stream, placement: Placement) -> None:
        self._steps, self._shape, self._stream, self._placement = steps, (size, latent), stream, placement

    def __len__(self) -> int:
        return self._steps

    def epoch(self, index: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch, beginning with batch number `start`; their labels are unused zeros."""
        size, latent = self._shape
        for step in range(start, self._steps):
            draws = Draws(self._stream.child("epoch", index, "step", step), self._placement)
            codes = draws.normal("codes", size, latent)
            yield Batch(codes, torch.zeros(len(codes), dtype=torch.long, device=codes.device), draws, size)
