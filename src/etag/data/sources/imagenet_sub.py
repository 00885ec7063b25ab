"""ImageNet-sub: randomly drawn classes of a folder in ImageNet's layout."""

from pathlib import Path

from etag.data.folders import as_images
from etag.data.source import DataOptions, Dataset, source
from etag.data.sources.folder import MEAN, STD, parts


@source("imagenet-sub", "ImageNet, or some classes of it (data.classes, data.subset), 224 px", ("train", "val"))
def load(path: Path, options: DataOptions) -> Dataset:
    """List the files; 100 random classes, images of 256 x 256 pixels, crops of 224 (paper: Experiments, Datasets)."""
    train, test = parts(path)
    images = as_images(train, options.workers), as_images(test, options.workers)
    return Dataset(*images, tuple(train), size=224, mean=MEAN, std=STD, stored_ratio=256 / 224, default_classes=100)
