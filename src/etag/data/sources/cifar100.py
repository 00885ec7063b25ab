"""CIFAR-100: parquet files in the Hugging Face schema, or the official archive, packed or unpacked."""

import gzip
import io
import json
import tarfile
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from etag.core.errors import EtagError
from etag.core.files import require_regular_file
from etag.data.decode import UnreadableImage, decode_bytes
from etag.data.download import Download
from etag.data.images import EncodedImages, MemoryImages
from etag.data.pickles import ByteArray, read_pickle
from etag.data.source import DataOptions, Dataset, source

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
SIDE, CLASSES = 32, 100
ARCHIVE, FOLDER = "cifar-100-python.tar.gz", "cifar-100-python"
# limits for hostile files; the data set has 50,000 images in a file, and its archive 178 MiB in 5 members
MOST_IMAGES, MOST_MEMBERS, LARGEST, LARGEST_IMAGE = 100_000, 100, 256 << 20, 1 << 20
Part = tuple[MemoryImages | EncodedImages, tuple[str, ...]]  # images, and class names if the file has them


@source(
    "cifar100",
    "60,000 photographs, 32x32 color, 100 classes (parquet, or the official archive)",
    ("train.parquet", "test.parquet"),
    (f"{FOLDER}/train", f"{FOLDER}/test"),
    (ARCHIVE,),
    downloads=[
        Download(
            f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}",
            "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            169_001_437,
        )
    ],
)
def load(folder: Path, _options: DataOptions) -> Dataset:
    """Load the parquet files if they exist, otherwise the official archive or its unpacked folder."""
    (train, names), (test, _) = _read_parquet(folder) if (folder / "train.parquet").exists() else _read_official(folder)
    classes = names or tuple(str(label) for label in range(min(int(train.labels.max()) + 1, CLASSES)))
    return Dataset(train, test, classes, size=SIDE, mean=MEAN, std=STD)


def _read_parquet(folder: Path) -> list[Part]:
    import pyarrow.parquet

    parts: list[Part] = []
    for file in (folder / "train.parquet", folder / "test.parquet"):
        try:
            require_regular_file(file)
            # images are read as a dictionary because a small file can hold the same large one for very many rows
            with pyarrow.parquet.ParquetFile(file, read_dictionary=["img.bytes"]) as content:
                parts.append((_parquet_images(content, file), _parquet_names(content.schema_arrow.metadata or {})))
        except Exception as error:  # damaged or hostile files can make the parsers raise anything
            raise _unreadable(file, error) from error
    return parts


def _parquet_images(content: Any, file: Path) -> EncodedImages:
    rows = content.metadata.num_rows
    if not 0 < rows <= MOST_IMAGES:
        raise ValueError(f"it holds {rows:,} rows, not 1 to {MOST_IMAGES:,}")
    images: list[Any] = []
    labels: list[Any] = []
    for batch in content.iter_batches(1024, columns=["img.bytes", "fine_label"]):
        (column,) = batch.column("img").flatten()  # its one field, `bytes`
        different = column.dictionary.to_pylist()
        images += [None if place is None else different[place] for place in column.indices.to_pylist()]
        labels += batch.column("fine_label").to_pylist()

    def encoded(row: int) -> bytes:
        content = images[row]
        if not isinstance(content, bytes):
            raise _undecodable(file, row, "it is missing")
        if len(content) > LARGEST_IMAGE:
            raise _undecodable(file, row, f"it has more than {LARGEST_IMAGE:,} bytes")
        return content

    def decode(rows: list[int]) -> torch.Tensor:
        pixels = np.empty((len(rows), 3, SIDE, SIDE), np.uint8)
        for place, row in enumerate(rows):
            try:
                pixels[place] = decode_bytes(encoded(row), SIDE)
            except UnreadableImage as error:
                raise _undecodable(file, row, str(error)) from error
        return torch.from_numpy(pixels)

    return EncodedImages(_labels(labels, len(images)), torch.arange(len(images)), SIDE, encoded, decode)


def _undecodable(file: Path, row: int, reason: str) -> EtagError:
    return _unreadable(file, ValueError(f"image {row} cannot be decoded: {reason}"))


def _parquet_names(metadata: dict[bytes, bytes]) -> tuple[str, ...]:
    features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    return _distinct(features.get("fine_label", {}).get("names", []))


def _distinct(names: list[str]) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError("its class names are not distinct texts")
    return tuple(names)


def _read_official(folder: Path) -> list[Part]:
    """Read the three pickles of the official archive."""
    path = folder / FOLDER if (folder / FOLDER / "train").exists() else folder / ARCHIVE
    try:
        contents = _unpickled(path)
        names = _distinct([name.decode() for name in contents["meta"][b"fine_label_names"]])
        return [(_official_images(contents[name]), names) for name in ("train", "test")]
    except Exception as error:  # damaged or hostile files can make the parsers raise anything
        raise _unreadable(path, error) from error


def _official_images(content: dict[bytes, Any]) -> MemoryImages:
    if not isinstance(content[b"data"], ByteArray):
        raise ValueError("its images are not an array of bytes")
    pixels = content[b"data"].to_numpy().reshape(-1, 3, SIDE, SIDE)
    return MemoryImages(torch.from_numpy(pixels), _labels(content[b"fine_labels"], len(pixels)))


def _unpickled(path: Path) -> dict[str, Any]:
    """Return what the three files of a folder or an archive hold, by name."""
    contents = {}
    with nullcontext() if path.is_dir() else _archive(path) as archive:
        members = {member.name: member for member in islice(archive or [], MOST_MEMBERS)}
        for name in ("train", "test", "meta"):
            member = members.get(f"{FOLDER}/{name}")
            if archive is None:
                require_regular_file(path / name)
                file: IO[bytes] | None = (path / name).open("rb")
            else:
                file = archive.extractfile(member) if member is not None and member.isreg() else None
            if file is None:
                raise ValueError(f"{name} is missing")
            with file:
                contents[name] = read_pickle(_within_limit(file.read(LARGEST + 1), name))
    return contents


def _archive(path: Path) -> tarfile.TarFile:
    """Return the archive, unpacked in memory: what its headers claim can then not exceed what is there."""
    require_regular_file(path)
    with gzip.open(path) as file:
        content = _within_limit(file.read(LARGEST + 1), "its content")
    return tarfile.open(fileobj=io.BytesIO(content), mode="r:")


def _within_limit(content: bytes, name: str) -> bytes:
    if len(content) > LARGEST:
        raise ValueError(f"{name} is larger than {LARGEST >> 20} MiB")
    return content


def _labels(labels: Any, images: int) -> torch.Tensor:
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise ValueError("its labels are not whole numbers")
    if images != len(labels):
        raise ValueError(f"{images} images, but {len(labels)} labels")
    return torch.tensor(labels, dtype=torch.long)


def _unreadable(file: Path, error: Exception) -> EtagError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return EtagError(f"{file} cannot be read as CIFAR-100 ({reason}): download it again.")
