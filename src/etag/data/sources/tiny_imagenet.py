"""Tiny-ImageNet in its original layout: train/CLASS/images, and val/images with a file of annotations."""

from collections.abc import Iterable
from pathlib import Path

from etag.core.errors import EtagError
from etag.data.download import Download
from etag.data.folders import Listing, as_images, list_classes
from etag.data.source import DataOptions, Dataset, source

MEAN, STD = (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)
ANNOTATIONS = "val/val_annotations.txt"


@source(
    "tiny-imagenet",
    "120,000 photographs, 64x64 color, 200 classes",
    ("train", ANNOTATIONS),
    downloads=[Download("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de")],
)
def load(path: Path, options: DataOptions) -> Dataset:
    """List the training and validation files; the original test images have no labels."""
    train = list_classes(path / "train")
    images = as_images(train, options.workers), as_images(_validation(path, train), options.workers)
    return Dataset(*images, tuple(train), size=64, mean=MEAN, std=STD)


def _validation(path: Path, classes: Iterable[str]) -> Listing:
    """Return the validation files of each class, as the annotations file lists them."""
    listing: Listing = {name: [] for name in classes}
    try:
        lines = (path / ANNOTATIONS).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EtagError(f"{path / ANNOTATIONS} cannot be read: {error}.") from error
    for number, line in enumerate(lines, start=1):
        file, _, rest = line.partition("\t")
        name = rest.partition("\t")[0]
        if name not in listing:
            raise EtagError(f"{path / ANNOTATIONS}, line {number}: '{name}' is not a class in train/.")
        listing[name].append(str(path / "val" / "images" / file))
    return listing
