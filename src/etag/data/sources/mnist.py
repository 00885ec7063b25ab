"""MNIST as its four idx files, gzipped or not."""

import gzip
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from etag.core.errors import EtagError
from etag.data.download import Download
from etag.data.images import MemoryImages
from etag.data.source import DataOptions, Dataset, source

PARTS = {"train": "train", "test": "t10k"}
NAMES = tuple(f"{part}-{kind}" for part in PARTS.values() for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))

MD5 = dict(
    zip(
        NAMES,
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        strict=True,
    )
)


FILES = (tuple(f"{name}.gz" for name in NAMES), NAMES)
DOWNLOADS = [Download(f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz", MD5[name]) for name in NAMES]


@source("mnist", "70,000 handwritten digits, 28x28 gray, 10 classes (idx files)", *FILES, downloads=DOWNLOADS)
def load(folder: Path, _options: DataOptions) -> Dataset:
    """Read both parts."""
    train, test = (
        MemoryImages(
            _read(folder / f"{part}-images-idx3-ubyte", 3).unsqueeze(1),
            _read(folder / f"{part}-labels-idx1-ubyte", 1).long(),
        )
        for part in PARTS.values()
    )
    for part, images in zip(PARTS, (train, test), strict=True):
        if len(images.pixels) != len(images.labels):
            raise EtagError(f"{folder}: the {part} files hold {len(images.pixels)} images, but {len(images)} labels.")
    return Dataset(
        train=train,
        test=test,
        classes=tuple(str(digit) for digit in range(10)),
        size=28,
        mean=(0.1307,),
        std=(0.3081,),
        flip=False,
    )


def _read(file: Path, dimensions: int) -> Tensor:
    """An idx file of bytes: a head of big-endian numbers (kind, sizes), then the values."""
    zipped = file.with_name(f"{file.name}.gz")
    file = zipped if zipped.is_file() else file
    try:
        raw = gzip.decompress(file.read_bytes()) if file is zipped else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise EtagError(f"{file} cannot be read: {error}.") from error
    head = 4 * (1 + dimensions)
    kind, *shape = np.frombuffer(raw[:head].ljust(head, b"\0"), ">u4").tolist()
    if kind != 0x0800 + dimensions or len(raw) - head != np.prod(shape, dtype=object):
        raise EtagError(f"{file} is no idx file of {dimensions} dimension(s), or is cut short.")
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=head).reshape(shape).copy())
