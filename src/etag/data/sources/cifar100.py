"""CIFAR-100 as parquet files in the Hugging Face schema (PNG bytes and labels)."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from etag.core.errors import EtagError
from etag.data.images import MemoryImages
from etag.data.source import Dataset, source


@source("cifar100", "60,000 photographs, 32x32 colour, 100 classes (parquet)", ("train.parquet", "test.parquet"))
def load(folder: Path) -> Dataset:
    """Read both files; class names come from the schema, or else are numbers."""
    train, names = _read(folder / "train.parquet")
    test, _ = _read(folder / "test.parquet")
    return Dataset(
        train=train,
        test=test,
        classes=names or tuple(str(label) for label in range(int(train.labels.max()) + 1)),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
    )


def _read(file: Path) -> tuple[MemoryImages, tuple[str, ...]]:
    import pyarrow.compute
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(file, columns=["img", "fine_label"])
        encoded = pyarrow.compute.struct_field(table.column("img"), "bytes")
        pixels = np.stack([_decode(png.as_py()) for png in encoded])
        labels = torch.from_numpy(table.column("fine_label").to_numpy().copy()).long()
        names = _names(table)
    except (pyarrow.ArrowException, AttributeError, KeyError, OSError, ValueError) as error:
        raise EtagError(f"{file} can not be read as CIFAR-100 ({str(error).splitlines()[0]}).") from error
    return MemoryImages(torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), labels), names


def _decode(png: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def _names(table: Any) -> tuple[str, ...]:
    metadata = (table.schema.metadata or {}).get(b"huggingface", b"{}")
    features = json.loads(metadata).get("info", {}).get("features", {})
    return tuple(features.get("fine_label", {}).get("names", ()))
