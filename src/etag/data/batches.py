"""Batches of images, of cached features or of random codes; reading can start at any epoch and step."""

from collections.abc import Callable, Iterator
from itertools import islice

import torch
from torch import Tensor
from torch.nn import functional

from etag.core.errors import EtagError
from etag.core.random import Draws, Placement, Stream
from etag.core.scenario import ImageSet
from etag.core.work import Batch
from etag.data.preprocess import Preprocess


class _BatchOrder:
    """The rows of each batch of an epoch: shuffled or not, with or without the short last batch."""

    def __init__(self, rows: int, size: int, stream: Stream, placement: Placement, shuffle: bool, drop_last: bool):
        if shuffle and size % placement.world:
            raise EtagError(
                f"batch_size={size} cannot be divided evenly among {placement.world} processes: choose a multiple of "
                f"{placement.world}."
            )
        self.rows, self.size = rows, size
        # in training every process gets equally many rows, so that the mean over processes is the batch mean
        self.used = rows - rows % placement.world if shuffle else rows
        if self.used == 0:
            raise EtagError(
                f"{rows} images are too few for a batch on {placement.world} process(es): add images or use fewer "
                "processes."
            )
        self.stream, self.placement = stream, placement
        self.shuffle, self.drop_last = shuffle, drop_last and self.used >= size

    def __len__(self) -> int:
        return self.used // self.size if self.drop_last else -(-self.used // self.size)

    def epoch(self, index: int) -> Iterator[tuple[Tensor, Draws, int]]:
        """Yield for each step: the rows of this process, the step's random draws, the size of the global batch."""
        order = torch.arange(self.rows)
        if self.shuffle:
            order = torch.randperm(self.rows, generator=self.stream.generator("order", index))
        for step in range(len(self)):
            rows = order[step * self.size : min((step + 1) * self.size, self.used)]
            draws = Draws(self.stream.child("epoch", index, "step", step), self.placement)
            yield rows[self.placement.share(len(rows))], draws, len(rows)


class ImageBatches:
    """Batches of normalized images, augmented if `augment` is true.

    `side` maps an epoch to the image side in pixels for that epoch (progressive resizing); it never enlarges.
    """

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
        side: Callable[[int], int] | None = None,
    ) -> None:
        self._images, self._preprocess, self._augment, self._side = images, preprocess, augment, side
        self._order = _BatchOrder(len(images), size, stream, placement, shuffle, drop_last)

    def __len__(self) -> int:
        return len(self._order)

    @property
    def smallest(self) -> int:
        """Number of rows that the smallest batch of an epoch has on one process."""
        last = self._order.used % self._order.size
        rows = self._order.size if self._order.drop_last or not last else last
        return rows // self._order.placement.world

    def epoch(self, index: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch, beginning with batch number `start`."""
        device, preprocess = self._order.placement.device, self._preprocess
        steps = list(self._order.epoch(index))[start:]
        batches = self._images.batches([rows for rows, _, _ in steps])
        for (rows, draws, total), pixels in zip(steps, batches, strict=True):
            pixels = pixels.to(device, non_blocking=True)
            inputs = preprocess.train(pixels, draws, total) if self._augment else preprocess.test(pixels)
            if self._side is not None and (side := self._side(index)) < preprocess.size:
                inputs = functional.interpolate(inputs, size=(side, side), mode="bilinear", antialias=True)
            yield Batch(inputs, self._images.labels[rows].to(device, non_blocking=True), draws, total)


class FeatureBatches:
    """Batches of cached features.

    `features` has one or more passes over the same images, each with its own augmentation; epochs use them in turn.
    """

    def __init__(
        self,
        features: Tensor,  # (passes, images, feature)
        labels: Tensor,
        size: int,
        stream: Stream,
        placement: Placement,
        *,
        drop_last: bool = False,
    ) -> None:
        self._features, self._labels = features, labels
        self._order = _BatchOrder(len(labels), size, stream, placement, True, drop_last)

    def __len__(self) -> int:
        return len(self._order)

    def epoch(self, index: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch, beginning with batch number `start`."""
        features = self._features[index % len(self._features)]
        for rows, draws, total in islice(self._order.epoch(index), start, None):
            rows = rows.to(features.device)
            yield Batch(features[rows], self._labels[rows], draws, total)


class ClassBatches:
    """Batches of cached features with one feature of every class per row: (rows, classes, feature).

    An epoch is one pass over the largest class; features of smaller classes are repeated.
    """

    def __init__(self, features: Tensor, labels: Tensor, size: int, stream: Stream, placement: Placement) -> None:
        self._features = features
        counts: list[int] = labels.bincount().tolist()
        self._class_rows = torch.split(labels.argsort(stable=True).cpu(), counts)
        largest = max(map(len, self._class_rows))
        self._order = _BatchOrder(largest, size, stream, placement, shuffle=True, drop_last=False)

    def __len__(self) -> int:
        return len(self._order)

    def epoch(self, index: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch, beginning with batch number `start`; their labels are unused zeros."""
        stream = self._order.stream.child("classes", index)
        orders = [
            rows[torch.randperm(len(rows), generator=stream.generator(label))]
            for label, rows in enumerate(self._class_rows)
        ]
        for positions, draws, total in islice(self._order.epoch(index), start, None):
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
