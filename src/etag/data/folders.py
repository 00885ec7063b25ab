"""Image folders: a sub-folder is a class."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from etag.core.errors import EtagError
from etag.data.decode import ENDINGS, UnreadableImage, image_size
from etag.data.images import FileImages, MemoryImages, unreadable_error

Listing = dict[str, list[str]]  # files of each class


def list_classes(root: Path, fewest: int = 2) -> Listing:
    """The image files below each sub-folder, both in order of their names."""
    try:
        folders = sorted(
            entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith(".")
        )
    except OSError as error:
        raise EtagError(f"the image folder '{root}' cannot be read: {error.strerror}.") from error
    if not folders:
        raise EtagError(f"'{root}' holds no classes: there should be a sub-folder of images for each.")
    if len(folders) < fewest:
        raise EtagError(f"'{root}' holds a single class, '{folders[0]}': there must be two at least to tell apart.")
    listing = {name: list_images(root / name) for name in folders}
    empty = [name for name, files in listing.items() if not files]
    if empty:
        raise EtagError(f"'{root}' has classes without images ({', '.join(empty)}): known are {_endings()} files.")
    return listing


def list_images(folder: Path) -> list[str]:
    """All image files below a folder, by their endings, in order of their paths."""
    found = []
    for path, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))  # os.walk visits these, in order
        images = (name for name in sorted(names) if not name.startswith("."))
        found += [os.path.join(path, name) for name in images if os.path.splitext(name)[1].lower() in ENDINGS]
    return found


def split_off(listing: Listing) -> tuple[Listing, Listing]:
    """Every fifth image of each class for testing, the others for training; one of each at least."""
    scarce = [name for name, files in listing.items() if len(files) < 2]
    if scarce:
        raise EtagError(
            f"classes with a single image ({', '.join(scarce)}) cannot be split into training and testing: add "
            "images, or make folders train/ and val/."
        )
    train, test = {}, {}
    for name, files in listing.items():
        held_out = set(range(4, len(files), 5)) or {len(files) - 1}
        test[name] = [file for place, file in enumerate(files) if place in held_out]
        train[name] = [file for place, file in enumerate(files) if place not in held_out]
    return train, test


def as_images(listing: Listing, classes: Sequence[str], workers: int, channels: int = 3) -> FileImages:
    """The files with their labels; `side` is still to be chosen."""
    files = [file for name in classes for file in listing[name]]
    labels = [label for label, name in enumerate(classes) for _ in listing[name]]
    return FileImages(np.array(files), torch.tensor(labels, dtype=torch.long), 0, workers, channels)


def write_folders(images: MemoryImages, names: dict[int, str], home: Path, per_class: int | None = None) -> int:
    """The first images of some classes (their names by label) as PNG files, a sub-folder a class; how many."""
    written = 0
    for label, name in names.items():
        folder = home / name
        folder.mkdir(parents=True, exist_ok=True)
        for place, row in enumerate((images.labels == label).nonzero().flatten()[:per_class].tolist()):
            pixels = images.pixels[row].permute(1, 2, 0).squeeze(2).numpy()
            Image.fromarray(np.ascontiguousarray(pixels)).save(folder / f"{place:05}.png")
            written += 1
    return written


def common_size(files: Sequence[str]) -> int:
    """The side of the images, if all are squares of one size; files that cannot be opened are told all at once."""
    sizes, unreadable = set(), []
    for file in files:
        try:
            sizes.add(image_size(file))
        except UnreadableImage as reason:
            unreadable.append(f"{file} ({reason})")
    if unreadable:
        raise unreadable_error(unreadable)
    if len(sizes) == 1 and len(set(*sizes)) == 1:
        return sizes.pop()[0]
    low, high = min(sizes), max(sizes)
    shape = f"from {low[0]}x{low[1]} to {high[0]}x{high[1]}" if len(sizes) > 1 else f"{low[0]}x{low[1]}"
    raise EtagError(
        f"the images are not squares of one size ({shape} pixels): say which side to resize them to with "
        "--set data.size=N, such as 32, 64 or 224."
    )


def _endings() -> str:
    return ", ".join(sorted(ENDINGS))
