"""Tiny-ImageNet in its original layout: train/CLASS/images, and val/images with a file of annotations."""

from collections.abc import Iterable
from pathlib import Path

from etag.core.errors import EtagError
from etag.core.files import require_regular_file, safe_file_name
from etag.data.download import Download
from etag.data.folders import Listing, as_images, list_classes
from etag.data.source import DataOptions, Dataset, source

MEAN, STD = (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)
ANNOTATIONS = "val/val_annotations.txt"


@source(
    "tiny-imagenet",
    "120,000 photographs, 64x64 color, 200 classes",
    ("train", ANNOTATIONS),
    downloads=[
        Download(
            "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
            248_100_043,
        )
    ],
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
        require_regular_file(path / ANNOTATIONS)
        lines = (path / ANNOTATIONS).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EtagError(f"{path / ANNOTATIONS} cannot be read: {error}.") from error
    for number, line in enumerate(lines, start=1):
        file, _, rest = line.partition("\t")
        name = rest.partition("\t")[0]
        if name not in listing:
            raise EtagError(f"{path / ANNOTATIONS}, line {number}: '{name}' is not a class in train/.")
        if file != safe_file_name(file):
            raise EtagError(f"{path / ANNOTATIONS}, line {number}: '{file}' is not the name of a file in val/images/.")
        listing[name].append(str(path / "val" / "images" / file))
    return listing
