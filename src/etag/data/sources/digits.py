"""The handwritten digits that come with scikit-learn: nothing to download."""

from pathlib import Path

import torch

from etag.data.images import MemoryImages
from etag.data.source import DataOptions, Dataset, source


@source("digits", "1,797 handwritten digits, 8x8 gray, 10 classes; comes with scikit-learn")
def load(_path: Path, _options: DataOptions) -> Dataset:
    """Every fifth image of each class is for testing."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = torch.from_numpy(bunch.images * (255 / 16)).round().to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(bunch.target).long()
    place = torch.zeros_like(labels)
    for label in range(10):
        rows = labels == label
        place[rows] = torch.arange(int(rows.sum()))
    images, held_out = MemoryImages(pixels, labels), place % 5 == 4
    return Dataset(
        train=images.select((~held_out).nonzero().flatten()),
        test=images.select(held_out.nonzero().flatten()),
        classes=tuple(str(name) for name in bunch.target_names),
        size=8,
        mean=(0.305,),
        std=(0.376,),
        flip=False,
    )
