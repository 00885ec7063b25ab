"""MNIST from its four idx files, gzipped or not."""

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

MD5 = {
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
FILES = (tuple(f"{name}.gz" for name in MD5), tuple(MD5))
DOWNLOADS = [Download(f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz", md5) for name, md5 in MD5.items()]


@source("mnist", "70,000 handwritten digits, 28x28 gray, 10 classes (idx files)", *FILES, downloads=DOWNLOADS)
def load(folder: Path, _options: DataOptions) -> Dataset:
    """Load the training and test images."""
    train, test = _images(folder, "train", "train"), _images(folder, "test", "t10k")
    return Dataset(train, test, tuple("0123456789"), size=28, mean=(0.1307,), std=(0.3081,), flip=False)


def _images(folder: Path, part: str, prefix: str) -> MemoryImages:
    pixels = _read(folder / f"{prefix}-images-idx3-ubyte", 3).unsqueeze(1)
    labels = _read(folder / f"{prefix}-labels-idx1-ubyte", 1).long()
    if len(pixels) != len(labels):
        raise EtagError(
            f"{folder}: the {part} files have {len(pixels)} images but {len(labels)} labels: download them again."
        )
    return MemoryImages(pixels, labels)


def _read(file: Path, dimensions: int) -> Tensor:
    """Read an idx file of bytes: a header of big-endian numbers (type, sizes), then the values."""
    zipped = file.with_name(f"{file.name}.gz")
    file = zipped if zipped.is_file() else file
    try:
        raw = gzip.decompress(file.read_bytes()) if file is zipped else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise EtagError(f"{file} cannot be read: {error}.") from error
    header = 4 * (1 + dimensions)
    kind, *shape = np.frombuffer(raw[:header].ljust(header, b"\0"), ">u4").tolist()
    if kind != 0x0800 + dimensions or len(raw) - header != np.prod(shape, dtype=object):
        raise EtagError(f"{file} is not an idx file with {dimensions} dimension(s), or is cut off: download it again.")
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=header).reshape(shape).copy())
