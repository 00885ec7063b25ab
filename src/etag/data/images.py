"""Sets of labeled images: in memory as uint8, or in files that worker processes decode in advance."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from etag.core.errors import EtagError
from etag.core.files import read_file
from etag.core.images import Resize
from etag.core.scenario import ImageSet
from etag.data.decode import UnreadableImage, decode

KEY_BYTES = 16  # of the checksum of an image
Decoded = tuple[Tensor, list[int], list[str]]  # images, their positions in the batch, "file (reason)" for the others


@dataclass(frozen=True)
class MemoryImages:
    """Images of one size in one uint8 tensor of shape (n, channels, height, width). With `enlarge` they are enlarged
    when they are read: enlarged ones would need far more memory."""

    stored: Tensor
    labels: Tensor
    enlarge: Resize | None = None
    holds_features = False

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, row_batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield the images of each tensor of rows, in order."""
        return (_scaled(self.stored.index_select(0, rows), self.enlarge) for rows in row_batches)

    @property
    def pixels(self) -> Tensor:
        """All images, enlarged."""
        return _scaled(self.stored, self.enlarge)

    def select(self, rows: Tensor) -> Self:
        """Return a set of these rows only."""
        return replace(self, stored=self.stored[rows], labels=self.labels[rows])

    def join(self, others: list[Self]) -> Self:
        """Return this set followed by the others as one set."""
        sets, labels = [self, *others], torch.cat([self.labels, *(other.labels for other in others)])
        if any(part.enlarge != self.enlarge for part in others):
            return replace(self, stored=torch.cat([part.pixels for part in sets]), labels=labels, enlarge=None)
        return replace(self, stored=torch.cat([part.stored for part in sets]), labels=labels)

    def resized(self, resize: Resize) -> Self:
        """Return the images resized: smaller ones now, larger ones when they are read."""
        if self.stored.shape[-2:] == (resize.side, resize.side) and resize.crop is None:
            return replace(self, enlarge=None) if self.enlarge else self
        if resize.side**2 > self.stored.shape[-2] * self.stored.shape[-1]:
            return replace(self, enlarge=resize)
        return replace(self, stored=_scaled(self.stored, resize), enlarge=None)


@dataclass(frozen=True)
class EncodedImages:
    """Square images of a data file. They are decoded once it is known which of them are needed: all at once if they are
    resized to their own size or smaller, else at each reading, which costs little beside a network for large images."""

    labels: Tensor
    rows: Tensor  # positions in the data file
    side: int  # pixels
    encoded: Callable[[int], bytes]  # the content of the image at a position
    decode: Callable[[list[int]], Tensor]  # from positions to uint8 of shape (n, channels, side, side)
    enlarge: Resize | None = None
    holds_features = False

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, row_batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield the images of each tensor of rows, in order."""
        return (_scaled(self.decode(self.rows[rows].tolist()), self.enlarge) for rows in row_batches)

    def select(self, rows: Tensor) -> Self:
        """Return a set of these rows only."""
        return replace(self, labels=self.labels[rows], rows=self.rows[rows])

    def join(self, others: list[Self]) -> Self:
        """Return this set followed by the others, of the same data file, as one set."""
        labels, rows = (torch.cat(parts) for parts in zip(*((s.labels, s.rows) for s in [self, *others]), strict=True))
        return replace(self, labels=labels, rows=rows)

    def resized(self, resize: Resize) -> "MemoryImages | EncodedImages":
        """Return the images resized: enlarged ones are decoded when they are read, others now."""
        if resize.side > self.side:
            return replace(self, enlarge=resize)
        return self.in_memory().resized(resize)

    def in_memory(self) -> MemoryImages:
        """Decode all images now."""
        return MemoryImages(self.decode(self.rows.tolist()), self.labels, self.enlarge)

    @property
    def pixels(self) -> Tensor:
        """All images, decoded at each call."""
        return self.in_memory().pixels


@dataclass(frozen=True)
class FileImages:
    """Images in files; worker processes decode them when they are read, a few batches in advance."""

    files: np.ndarray[Any, np.dtype[np.str_]]
    labels: Tensor
    resize: Resize
    workers: int
    channels: int = 3  # 1 decodes them in gray
    holds_features = False

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, row_batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield the images of each tensor of rows, in order; a file that cannot be read raises an EtagError."""
        for _, pixels, unreadable in self.decode_batches(row_batches):
            if unreadable:
                raise unreadable_error(unreadable)
            yield pixels

    def decode_batches(self, batches: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor, list[str]]]:
        """Yield for each tensor of rows: the readable rows, their images, and "file (reason)" for each other row."""
        loader = DataLoader(
            _Files(self),
            batch_size=None,  # the rows of whole batches are the samples
            sampler=[rows.tolist() for rows in batches],
            num_workers=min(self.workers, len(batches)),
            generator=torch.Generator(),  # else it would use the global one
        )
        decoded = iter(loader)
        try:
            for rows, (pixels, positions, unreadable) in zip(batches, decoded, strict=True):
                yield rows[positions], pixels, unreadable
        finally:
            del decoded  # stops the worker processes, also when the caller stops early

    def select(self, rows: Tensor) -> Self:
        """Return a set of these rows only."""
        return replace(self, files=self.files[rows.numpy()], labels=self.labels[rows])

    def join(self, others: list[Self]) -> Self:
        """Return this set followed by the others as one set."""
        sets = [self, *others]
        files = np.concatenate([s.files for s in sets])
        return replace(self, files=files, labels=torch.cat([s.labels for s in sets]))

    def resized(self, resize: Resize) -> Self:
        """Return the set; files are resized when they are decoded."""
        return replace(self, resize=resize)

    @property
    def nbytes(self) -> int:
        """Bytes that the decoded images need in memory."""
        return len(self) * self.channels * self.resize.side**2

    def in_memory(self) -> MemoryImages:
        """Decode all images now; one error lists all files that cannot be read."""
        # copied chunk by chunk: each tensor that a worker sent would keep a file descriptor open
        pixels = torch.empty(len(self), self.channels, self.resize.side, self.resize.side, dtype=torch.uint8)
        done, unreadable = 0, []
        for _, chunk, failed in self.decode_batches(torch.split(torch.arange(len(self)), 64)):
            pixels[done : done + len(chunk)] = chunk
            done += len(chunk)
            unreadable += failed
        if unreadable:
            raise unreadable_error(unreadable)
        return MemoryImages(pixels, self.labels)


@dataclass(frozen=True)
class Features:
    """Features of images in place of the images, because the backbone does not train. Image i has row `places[i]` of
    `matrix`, which is float32 and may be mapped from a file."""

    matrix: Tensor
    places: Tensor
    labels: Tensor
    holds_features = True

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, row_batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield the features of each tensor of rows, in order."""
        return (self.matrix.index_select(0, self.places[rows]) for rows in row_batches)

    def select(self, rows: Tensor) -> Self:
        """Return a set of these rows only."""
        return replace(self, places=self.places[rows], labels=self.labels[rows])

    def join(self, others: list[Self]) -> Self:
        """Return this set followed by the others as one set; all use one matrix, or longer versions of it."""
        sets = [self, *others]
        longest = max((s.matrix for s in sets), key=len)
        places, labels = (torch.cat(parts) for parts in zip(*((s.places, s.labels) for s in sets), strict=True))
        return replace(self, matrix=longest, places=places, labels=labels)


@dataclass(frozen=True)
class MixedImages:
    """Rows of several image sets as one set; the sets may be of different kinds, such as files and memory."""

    sets: tuple[ImageSet, ...]
    rows: Tensor  # positions in the concatenation of the sets
    holds_features = False

    @classmethod
    def of(cls, *sets: ImageSet) -> Self:
        """Return a set of all images of the given sets."""
        return cls(sets, torch.arange(sum(map(len, sets))))

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def labels(self) -> Tensor:
        """Class number of each image."""
        return torch.cat([part.labels for part in self.sets])[self.rows]

    def read(self, row_batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield the images of each tensor of rows, in order; each set reads its own rows in advance."""
        positions = [self.rows[rows] for rows in row_batches]
        start, masks, readers = 0, [], []
        for part in self.sets:
            masks.append([(rows >= start) & (rows < start + len(part)) for rows in positions])
            own_rows = [rows[own] - start for rows, own in zip(positions, masks[-1], strict=True)]
            readers.append(part.read(own_rows))
            start += len(part)
        for rows, own, chunks in zip(positions, zip(*masks, strict=True), zip(*readers, strict=True), strict=True):
            pixels = chunks[0].new_empty(len(rows), *chunks[0].shape[1:])
            for mask, chunk in zip(own, chunks, strict=True):
                pixels[mask] = chunk
            yield pixels

    def select(self, rows: Tensor) -> Self:
        """Return a set of these rows only."""
        return replace(self, rows=self.rows[rows])

    def join(self, others: list[Self]) -> Self:
        """Return this set followed by the others as one set."""
        return type(self).of(self, *others)


def content_keys(images: ImageSet) -> list[bytes]:
    """Return a checksum of the content of each image, as it is stored. Equal images have equal keys."""
    if isinstance(images, MemoryImages):
        return [blake2b(row.tobytes(), digest_size=KEY_BYTES).digest() for row in images.stored.numpy()]
    if isinstance(images, MixedImages):
        keys = [key for part in images.sets for key in content_keys(part)]
        return [keys[row] for row in images.rows.tolist()]
    if isinstance(images, EncodedImages):
        return [blake2b(images.encoded(row), digest_size=KEY_BYTES).digest() for row in images.rows.tolist()]
    assert isinstance(images, FileImages)
    return [_file_key(file) for file in images.files.tolist()]


def _file_key(file: str) -> bytes:
    try:
        return blake2b(read_file(Path(file)), digest_size=KEY_BYTES).digest()
    except OSError as error:
        raise unreadable_error([f"{file} ({error.strerror})"]) from error


def concat_images(first: ImageSet, second: ImageSet) -> ImageSet:
    """Return both sets, of any kinds, as one."""
    if isinstance(first, MemoryImages) and isinstance(second, MemoryImages):
        return first.join([second])
    return MixedImages.of(first, second)


Images = MemoryImages | EncodedImages | FileImages  # what tasks are made of


def load_into_memory(train: Images, test: Images, limit: int) -> tuple[Images, Images]:
    """Return both sets decoded into memory if they are in files and together need at most `limit` MiB. Otherwise both
    are returned unchanged. They are decoded together, so that one error lists all unreadable files."""
    if not isinstance(train, FileImages) or not isinstance(test, FileImages):
        return train, test
    if train.nbytes + test.nbytes > limit * 2**20:
        return train, test
    rows = torch.arange(len(train) + len(test))
    both = train.join([test]).in_memory()
    return both.select(rows[: len(train)]), both.select(rows[len(train) :])


def _scaled(pixels: Tensor, resize: Resize | None) -> Tensor:
    """Return images in memory resized; None leaves them as they are."""
    if resize is None:
        return pixels
    width, height = size = resize.scaled_size(pixels.shape[-1], pixels.shape[-2])
    if pixels.shape[-2:] != (height, width):
        pixels = functional.interpolate(pixels, size[::-1], mode=resize.interpolation, antialias=True)
    left, top = (width - resize.side) // 2, (height - resize.side) // 2
    return pixels[:, :, top : top + resize.side, left : left + resize.side]


class _Files(Dataset[Decoded]):
    """Decodes the rows of one batch at a time."""

    def __init__(self, images: FileImages) -> None:
        self._images = images

    def __getitem__(self, rows: list[int]) -> Decoded:
        resize, channels, files = self._images.resize, self._images.channels, self._images.files
        pixels = torch.empty(len(rows), channels, resize.side, resize.side, dtype=torch.uint8)
        positions: list[int] = []
        unreadable = []
        for position, row in enumerate(rows):
            try:
                pixels[len(positions)] = torch.from_numpy(decode(files[row], resize, channels))
                positions.append(position)
            except UnreadableImage as reason:
                unreadable.append(f"{files[row]} ({reason})")
        return pixels[: len(positions)], positions, unreadable


def unreadable_reason(file: str, entry: str) -> str:
    """Return why a file is unreadable, from its "file (reason)"."""
    return entry.removeprefix(f"{file} (").removesuffix(")")


def unreadable_error(unreadable: list[str], advice: str = "") -> EtagError:
    """Return one error that lists all unreadable files, each given as "file (reason)"; `advice` is what else to do."""
    which, them = ("1 image file", "it") if len(unreadable) == 1 else (f"{len(unreadable)} image files", "them")
    return EtagError(f"{which} cannot be read: {', '.join(unreadable)}; replace or remove {them}{advice}.")
