"""CIFAR-100: parquet files in the Hugging Face schema, or the official archive, packed or unpacked."""

import io
import json
import pickle
import tarfile
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from PIL import Image

from etag.core.errors import EtagError
from etag.data.download import Download
from etag.data.images import MemoryImages
from etag.data.source import DataOptions, Dataset, source

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
ARCHIVE, FOLDER = "cifar-100-python.tar.gz", "cifar-100-python"
Part = tuple[MemoryImages, tuple[str, ...]]  # images, and class names if the file has them


@source(
    "cifar100",
    "60,000 photographs, 32x32 color, 100 classes (parquet, or the official archive)",
    ("train.parquet", "test.parquet"),
    (f"{FOLDER}/train", f"{FOLDER}/test"),
    (ARCHIVE,),
    downloads=[Download(f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}", "eb9058c3a382ffc7106e4002c42a8d85")],
)
def load(folder: Path, _options: DataOptions) -> Dataset:
    """Load the parquet files if they exist, otherwise the official archive or its unpacked folder."""
    (train, names), (test, _) = _read_parquet(folder) if (folder / "train.parquet").exists() else _read_official(folder)
    classes = names or tuple(str(label) for label in range(int(train.labels.max()) + 1))
    return Dataset(train, test, classes, size=32, mean=MEAN, std=STD)


def _read_parquet(folder: Path) -> list[Part]:
    import pyarrow.compute
    import pyarrow.parquet

    parts = []
    for file in (folder / "train.parquet", folder / "test.parquet"):
        try:
            table = pyarrow.parquet.read_table(file, columns=["img", "fine_label"])
            encoded = pyarrow.compute.struct_field(table.column("img"), "bytes")
            pixels = np.stack([np.asarray(Image.open(io.BytesIO(png.as_py())).convert("RGB")) for png in encoded])
            labels = table.column("fine_label").to_numpy()
            parts.append((_images(pixels.transpose(0, 3, 1, 2), labels), _names(table)))
        except Exception as error:  # damaged or hostile files can make the parsers raise anything
            raise _unreadable(file, error) from error
    return parts


def _names(table: Any) -> tuple[str, ...]:
    metadata = (table.schema.metadata or {}).get(b"huggingface", b"{}")
    features = json.loads(metadata).get("info", {}).get("features", {})
    return tuple(features.get("fine_label", {}).get("names", ()))


def _read_official(folder: Path) -> list[Part]:
    """Read the three pickles of the official archive; code in them is refused, never run."""
    path = folder / FOLDER if (folder / FOLDER / "train").exists() else folder / ARCHIVE
    try:
        contents = _unpickled(path)
        names = tuple(name.decode() for name in contents["meta"][b"fine_label_names"])
        return [
            (_images(np.asarray(content[b"data"], np.uint8).reshape(-1, 3, 32, 32), content[b"fine_labels"]), names)
            for content in (contents["train"], contents["test"])
        ]
    except Exception as error:  # damaged or hostile files can make the parsers raise anything
        raise _unreadable(path, error) from error


def _unpickled(path: Path) -> dict[str, Any]:
    """Return what the three files of a folder or an archive hold, by name."""
    contents = {}
    with nullcontext() if path.is_dir() else tarfile.open(path) as archive:
        for name in ("train", "test", "meta"):
            file = archive.extractfile(f"{FOLDER}/{name}") if archive else (path / name).open("rb")
            if file is None:
                raise KeyError(f"{name} is missing")
            with file:
                contents[name] = _PlainUnpickler(file).load()
    return contents


class _PlainUnpickler(pickle.Unpickler):
    """Allows plain values and NumPy arrays only; any other name in a pickle could run code."""

    ALLOWED = (
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("_codecs", "encode"),  # how Python 3 writes bytes in old pickle protocols
    )

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which CIFAR-100 does not need")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _images(pixels: np.ndarray[Any, np.dtype[np.uint8]], labels: Any) -> MemoryImages:
    numbers = torch.from_numpy(np.array(labels, np.int64))
    if len(pixels) != len(numbers):
        raise ValueError(f"{len(pixels)} images, but {len(numbers)} labels")
    return MemoryImages(torch.from_numpy(np.ascontiguousarray(pixels)), numbers)


def _unreadable(file: Path, error: Exception) -> EtagError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return EtagError(f"{file} cannot be read as CIFAR-100 ({reason}): download it again.")
