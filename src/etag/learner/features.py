"""Features of a frozen backbone, computed once per image: in memory, or in files that are mapped into memory.

A store belongs to one run or lesson and is deleted with its work folder; the runs of a grid share one ($ETAG_FEATURES).
Rows are written as they are computed, so an interrupted pass continues where it was.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from etag.core.files import append, locked, make_folder, read_file, truncate
from etag.data.images import KEY_BYTES

ENTRY = 2 * KEY_BYTES  # of the index: the key of an image, and the checksum of its features


class FeatureStore:
    """Rows of features by the content of their image. All come from one backbone with one preprocessing, of which
    `name` is a checksum. Without a folder the rows are in memory. Of several processes only one `writes` files; the
    others read what is there and keep new rows in memory."""

    def __init__(self, folder: Path | None, name: str, size: int, writes: bool = True) -> None:
        self._folder, self._size, self._writes = folder, size, writes and folder is not None
        self._index, self._rows = (Path(folder or "", f"{name}.{ending}") for ending in ("index", "rows"))
        self._places: dict[bytes, int] = {}
        self._matrix = torch.empty(0, size)

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Read what is on disk, and keep other processes from writing there meanwhile."""
        if self._folder is None:
            yield
            return
        if not self._writes:
            self._read()
            yield
            return
        make_folder(self._folder)
        with locked(self._index.with_suffix(".lock"), None):
            self._read()
            truncate(self._index, len(self._places) * ENTRY)
            truncate(self._rows, len(self._places) * 4 * self._size)
            yield

    def _read(self) -> None:
        """Take over the rows on disk, up to the first that is incomplete or damaged."""
        if not (self._index.is_file() and self._rows.is_file()):
            return
        index = read_file(self._index)
        count = min(len(index) // ENTRY, self._rows.stat().st_size // (4 * self._size))
        self._map(count)
        for place in range(len(self._places), count):
            entry = index[place * ENTRY : (place + 1) * ENTRY]
            if _seal(self._matrix[place]) != entry[KEY_BYTES:]:
                return
            self._places[entry[:KEY_BYTES]] = place

    def _map(self, count: int) -> None:
        if count:
            shape = (count, self._size)
            self._matrix = torch.from_numpy(np.memmap(self._rows, np.float32, "c", shape=shape))  # c: changes no file

    def missing(self, keys: Sequence[bytes]) -> list[int]:
        """Where in `keys` the images are whose features are not stored yet; of equal images only the first."""
        first = {key: place for place, key in reversed(list(enumerate(keys))) if key not in self._places}
        return sorted(first.values())

    def add(self, keys: Sequence[bytes], rows: Tensor) -> None:
        """Store rows of features."""
        rows, start = rows.detach().to("cpu", torch.float32), len(self._places)
        self._places |= {key: start + number for number, key in enumerate(keys)}
        if not self._writes:
            self._matrix = torch.cat([self._matrix, rows])
            return
        append(self._rows, rows.numpy().tobytes())
        append(self._index, b"".join(key + _seal(row) for key, row in zip(keys, rows, strict=True)))

    def rows(self, keys: Sequence[bytes]) -> tuple[Tensor, Tensor]:
        """The matrix of all rows, and the places of these images in it."""
        if self._writes:
            self._map(len(self._places))
        return self._matrix, torch.tensor([self._places[key] for key in keys], dtype=torch.long)


def _seal(row: Tensor) -> bytes:
    return blake2b(row.numpy().tobytes(), digest_size=KEY_BYTES).digest()
