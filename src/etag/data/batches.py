"""Sources of batches: images, and cached features. Both can be entered at any epoch."""

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


class _Order:
    """Which rows make up the batches of an epoch: shuffled or not, with or without the short last batch."""

    def __init__(self, rows: int, size: int, stream: Stream, placement: Placement, shuffle: bool, drop_last: bool):
        if shuffle and size % placement.world:
            raise EtagError(
                f"a batch of {size} cannot be shared evenly by {placement.world} processes: "
                "choose a batch_size that they divide."
            )
        self.rows, self.size = rows, size
        # in training, equal shares: then the mean over processes is the mean over the batch
        self.used = rows - rows % placement.world if shuffle else rows
        if self.used == 0:
            raise EtagError(f"{rows} images are too few to make a batch of for {placement.world} process(es).")
        self.stream, self.placement = stream, placement
        self.shuffle, self.drop_last = shuffle, drop_last and self.used >= size

    def __len__(self) -> int:
        return self.used // self.size if self.drop_last else -(-self.used // self.size)

    def epoch(self, index: int) -> Iterator[tuple[Tensor, Draws, int]]:
        """Per step: this process's rows, the step's draws, the rows of the global batch."""
        order = torch.arange(self.rows)
        if self.shuffle:
            order = torch.randperm(self.rows, generator=self.stream.generator("order", index))
        for step in range(len(self)):
            rows = order[step * self.size : min((step + 1) * self.size, self.used)]
            draws = Draws(self.stream.child("epoch", index, "step", step), self.placement)
            yield rows[self.placement.share(len(rows))], draws, len(rows)


class ImageBatches:
    """Normalized images; augmented ones unless `augment` is off; of the side that `side` says for an epoch."""

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
        self._order = _Order(len(images), size, stream, placement, shuffle, drop_last)

    def __len__(self) -> int:
        return len(self._order)

    @property
    def smallest(self) -> int:
        """Rows of the smallest batch on one process."""
        last = self._order.used % self._order.size
        rows = self._order.size if self._order.drop_last or not last else last
        return rows // self._order.placement.world

    def epoch(self, index: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, from the one numbered `start` on."""
        device, prepare = self._order.placement.device, self._preprocess
        steps = list(self._order.epoch(index))[start:]
        read = self._images.batches([rows for rows, _, _ in steps])
        for (rows, draws, total), pixels in zip(steps, read, strict=True):
            pixels = pixels.to(device, non_blocking=True)
            inputs = prepare.train(pixels, draws, total) if self._augment else prepare.test(pixels)
            if self._side is not None and (side := self._side(index)) < prepare.size:
                inputs = functional.interpolate(inputs, size=(side, side), mode="bilinear", antialias=True)
            yield Batch(inputs, self._images.labels[rows].to(device, non_blocking=True), draws, total)


class FeatureBatches:
    """Cached features: `features` holds one or more passes over the same images, used in turn."""

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
        self._order = _Order(len(labels), size, stream, placement, True, drop_last)

    def __len__(self) -> int:
        return len(self._order)

    def epoch(self, index: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, from the one numbered `start` on."""
        features = self._features[index % len(self._features)]
        for rows, draws, total in islice(self._order.epoch(index), start, None):
            rows = rows.to(features.device)
            yield Batch(features[rows], self._labels[rows], draws, total)


class ClassBatches:
    """Cached features, one of every class a row: (rows, classes, feature). Smaller classes are gone round again."""

    def __init__(self, features: Tensor, labels: Tensor, size: int, stream: Stream, placement: Placement) -> None:
        self._features = features
        counts: list[int] = labels.bincount().tolist()
        self._rows = torch.split(labels.argsort(stable=True).cpu(), counts)  # of each class
        self._order = _Order(max(map(len, self._rows)), size, stream, placement, shuffle=True, drop_last=False)

    def __len__(self) -> int:
        return len(self._order)

    def epoch(self, index: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, from the one numbered `start` on; labels are of no use here, and zero."""
        stream = self._order.stream.child("classes", index)
        orders = [rows[torch.randperm(len(rows), generator=stream.generator(c))] for c, rows in enumerate(self._rows)]
        for places, draws, total in islice(self._order.epoch(index), start, None):
            rows = torch.stack([order[places % len(order)] for order in orders], dim=1)
            inputs = self._features[rows.to(self._features.device)]
            yield Batch(inputs, torch.zeros(len(inputs), dtype=torch.long, device=inputs.device), draws, total)


class CodeBatches:
    """No data at all: normal codes, drawn anew for each of so many steps."""

    def __init__(self, steps: int, size: int, latent: int, stream: Stream, placement: Placement) -> None:
        self._steps, self._shape, self._stream, self._placement = steps, (size, latent), stream, placement

    def __len__(self) -> int:
        return self._steps

    def epoch(self, index: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, from the one numbered `start` on; labels are zero."""
        size, latent = self._shape
        for step in range(start, self._steps):
            draws = Draws(self._stream.child("epoch", index, "step", step), self._placement)
            codes = draws.normal("codes", size, latent)
            yield Batch(codes, torch.zeros(len(codes), dtype=torch.long, device=codes.device), draws, size)
