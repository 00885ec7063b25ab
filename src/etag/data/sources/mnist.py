"""MNIST from its four idx files, gzipped or not."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from etag.core.errors import EtagError
from etag.core.files import require_regular_file
from etag.data.download import Download
from etag.data.images import MemoryImages
from etag.data.source import DataOptions, Dataset, source

SIDE = 28
MOST_IMAGES = 1_000_000  # limits what a hostile file can unpack to; MNIST has 60,000
CHECKSUMS = {  # SHA-256 and bytes of the gzipped files
    "train-images-idx3-ubyte": ("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
    "train-labels-idx1-ubyte": ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
    "t10k-images-idx3-ubyte": ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
    "t10k-labels-idx1-ubyte": ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
}
FILES = (tuple(f"{name}.gz" for name in CHECKSUMS), tuple(CHECKSUMS))
DOWNLOADS = [
    Download(f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz", *known) for name, known in CHECKSUMS.items()
]


@source("mnist", "70,000 handwritten digits, 28x28 gray, 10 classes (idx files)", *FILES, downloads=DOWNLOADS)
def load(folder: Path, _options: DataOptions) -> Dataset:
    """Load the training and test images."""
    train, test = _images(folder, "train", "train"), _images(folder, "test", "t10k")
    return Dataset(train, test, tuple("0123456789"), size=SIDE, mean=(0.1307,), std=(0.3081,), flip=False)


def _images(folder: Path, part: str, prefix: str) -> MemoryImages:
    pixels = _read(folder / f"{prefix}-images-idx3-ubyte", (SIDE, SIDE)).unsqueeze(1)
    labels = _read(folder / f"{prefix}-labels-idx1-ubyte", ()).long()
    if len(pixels) != len(labels):
        raise EtagError(
            f"{folder}: the {part} files have {len(pixels)} images but {len(labels)} labels: download them again."
        )
    return MemoryImages(pixels, labels)


def _read(file: Path, item: tuple[int, ...]) -> Tensor:
    """Read an idx file of items of this shape: a header of big-endian numbers (type, sizes), then a byte per value."""
    zipped = file.with_name(f"{file.name}.gz")
    file = zipped if zipped.exists() else file
    dimensions = 1 + len(item)
    try:
        require_regular_file(file)
        with gzip.open(file) if file is zipped else file.open("rb") as content:
            header = content.read(4 * (1 + dimensions)).ljust(4 * (1 + dimensions), b"\0")
            kind, count, *rest = np.frombuffer(header, ">u4").tolist()
            if kind == 0x0800 + dimensions and tuple(rest) == item and count <= MOST_IMAGES:
                values = content.read(count * math.prod(item) + 1)  # a byte too many would be found
                if len(values) == count * math.prod(item):
                    return torch.from_numpy(np.frombuffer(values, np.uint8).reshape(count, *item).copy())
    except (OSError, EOFError, zlib.error) as error:
        raise EtagError(f"{file} cannot be read: {error}.") from error
    raise EtagError(f"{file} is not an idx file of MNIST, or is cut off: download it again.")
