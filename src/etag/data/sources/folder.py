"""Any folder of images: `train/` and `val/` (or `test/`), or one folder of classes that is split here."""

import os
from pathlib import Path

from etag.core.errors import EtagError
from etag.data.folders import Listing, as_images, common_size, hold_out_files, list_classes
from etag.data.source import DataOptions, Dataset, source

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet statistics, the usual choice for photographs


@source("folder", "your own images, one sub-folder per class: --data DIR, or data.path=DIR", needs_path=True)
def load(path: Path, options: DataOptions) -> Dataset:
    """List the files of each class; the images are decoded later."""
    train, test = parts(path)
    size = options.size or common_size([file for part in (train, test) for files in part.values() for file in files])
    images = as_images(train, options.workers), as_images(test, options.workers)
    return Dataset(*images, tuple(train), size, MEAN, STD)


def parts(path: Path) -> tuple[Listing, Listing]:
    """Return (training files, test files) by class; without train/, every fifth image is for testing."""
    test_folder = next((path / name for name in ("val", "test") if os.path.isdir(path / name)), None)
    if not _holds_classes(path / "train"):
        listing = list_classes(path)
        if scarce := [name for name, files in listing.items() if len(files) < 2]:
            raise EtagError(
                f"classes with a single image ({', '.join(scarce)}) cannot be split into training and test images: "
                "add images, or make separate folders train/ and val/."
            )
        return hold_out_files(listing)
    if test_folder is None:
        raise EtagError(f"'{path}' has a folder train, but neither val nor test: add one of them with the test images.")
    train, test = list_classes(path / "train"), list_classes(test_folder)
    if missing := sorted(set(train) ^ set(test)):
        raise EtagError(
            f"'{path}': train and {test_folder.name} need the same classes, but only one has: {', '.join(missing)}."
        )
    return train, test


def _holds_classes(folder: Path) -> bool:
    """Return whether the folder has sub-folders; one without may be a class that is called `train`."""
    return os.path.isdir(folder) and any(entry.is_dir() and entry.name[0] != "." for entry in os.scandir(folder))
