"""The handwritten digits that come with scikit-learn: nothing to download."""

from pathlib import Path

import torch

from etag.data.images import MemoryImages
from etag.data.rows import hold_out_rows
from etag.data.source import DataOptions, Dataset, source


@source("digits", "1,797 handwritten digits, 8x8 gray, 10 classes; comes with scikit-learn")
def load(_path: Path, _options: DataOptions) -> Dataset:
    """Load the digits; every fifth image of each class is for testing."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = torch.from_numpy(bunch.images * (255 / 16)).round().to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(bunch.target).long()
    images, (train_rows, test_rows) = MemoryImages(pixels, labels), hold_out_rows(labels)
    train, test = images.select(train_rows), images.select(test_rows)
    return Dataset(train, test, tuple("0123456789"), size=8, mean=(0.305,), std=(0.376,), flip=False)
