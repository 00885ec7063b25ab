"""Permuted MNIST: the digits under several fixed permutations of their pixels."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch

from etag.data.images import MemoryImages
from etag.data.rows import first_rows_per_class
from etag.data.source import DataOptions, Dataset, source
from etag.data.sources import mnist


@source(
    "permuted-mnist",
    "MNIST's digits under several fixed pixel permutations, 10 classes each (uses the files of mnist)",
    *mnist.FILES,
    downloads=mnist.DOWNLOADS,
    folder="mnist",
)
def load(folder: Path, options: DataOptions) -> Dataset:
    """Load MNIST once per permutation: class 10 p + d is digit d under permutation p. A split with ten classes per task
    has one permutation per task. With `domains`, all permutations of a digit are one class, so later tasks have no new
    classes. The permutations do not depend on the run's seed."""
    plain = mnist.load(folder, options)
    orders = [np.random.RandomState(number).permutation(28 * 28) for number in range(options.permutations)]
    return replace(
        plain,
        train=_permuted(cast(MemoryImages, plain.train), orders, options.train_per_class),
        test=_permuted(cast(MemoryImages, plain.test), orders, options.test_per_class),
        classes=tuple(f"{digit} in order {number}" for number in range(len(orders)) for digit in plain.classes),
        augment=False,
        ordered=True,
        domain_classes=plain.classes if options.domains else None,
    )


def _permuted(images: MemoryImages, orders: list[np.ndarray], per_class: int | None) -> MemoryImages:
    images = images.select(first_rows_per_class(images.labels, per_class))
    pixels = images.pixels.flatten(1)
    return MemoryImages(
        torch.cat([pixels[:, torch.from_numpy(order)].view_as(images.pixels) for order in orders]),
        torch.cat([images.labels + 10 * number for number in range(len(orders))]),
    )
