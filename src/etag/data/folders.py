"""Image folders with one sub-folder per class."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from etag.core.errors import EtagError
from etag.core.files import safe_file_name
from etag.core.images import Resize
from etag.data.decode import UnreadableImage, image_size
from etag.data.formats import ENDINGS
from etag.data.images import FileImages, MemoryImages, unreadable_error
from etag.data.not_read import NotRead
from etag.data.rows import hold_out_rows

Listing = dict[str, list[str]]  # class name -> image files
BESIDE = "beside the class folders"  # images that have no class
EMPTY_JUNK = {"__macosx", "$recycle.bin", "lost+found", "@eadir"}  # no classes, if they hold no images


def list_classes(root: Path, fewest: int = 2, not_read: NotRead | None = None) -> Listing:
    """Return the image files of each sub-folder, sorted; too few classes, or an empty one, is an error. Other files are
    counted in `not_read`."""
    not_read = NotRead(root) if not_read is None else not_read
    folders, files = visible_entries(root)
    for file in files:
        not_read.add(os.path.join(root, file), BESIDE if is_image(file) else None)
    listing = {name: list_images(root / name, not_read) for name in folders}
    listing = {name: files for name, files in listing.items() if files or name.casefold() not in EMPTY_JUNK}
    if not listing:
        raise EtagError(f"'{root}' holds no classes: put the images of each class into a sub-folder of its own.")
    if len(listing) < fewest:
        raise EtagError(
            f"'{root}' holds a single class, '{next(iter(listing))}': at least {fewest} classes are needed."
        )
    empty = [name for name, files in listing.items() if not files]
    if empty:
        raise EtagError(
            f"'{root}' has classes without images ({', '.join(empty)}): add images ({', '.join(sorted(ENDINGS))}) "
            f"or remove the folders{f'; {not_read}' if not_read.kinds else ''}."
        )
    return listing


def visible_entries(folder: str | Path) -> tuple[list[str], list[str]]:
    """Return the names of the folders and of the files in a folder, each sorted, without hidden ones."""
    try:
        entries = [(entry.name, entry.is_dir()) for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except (OSError, ValueError) as error:
        raise _folder_error(folder, error) from error
    return sorted(name for name, is_dir in entries if is_dir), sorted(name for name, is_dir in entries if not is_dir)


def _folder_error(folder: str | Path, error: Exception) -> EtagError:
    reason = error.strerror if isinstance(error, OSError) else error
    return EtagError(f"the image folder '{folder}' cannot be read: {reason}.")


def is_image(name: str) -> bool:
    """Return whether a file has the ending of an image."""
    return os.path.splitext(name)[1].lower() in ENDINGS


def list_images(folder: Path, not_read: NotRead | None = None) -> list[str]:
    """Return all files below a folder that have the ending of an image, sorted by path; others are counted in
    `not_read`."""

    def fail(error: OSError) -> None:
        raise _folder_error(error.filename, error) from error

    files = []
    for path, folders, names in os.walk(folder, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))  # os.walk visits these, in order
        for name in sorted(name for name in names if not name.startswith(".")):
            if is_image(name):
                files.append(os.path.join(path, name))
            elif not_read is not None:
                not_read.add(os.path.join(path, name))
    return files


def hold_out_files(listing: Listing) -> tuple[Listing, Listing]:
    """Return (training files, test files): every fifth image of each class is for testing, see `hold_out_rows`. A class
    with a single image has no test file."""
    train, test = {}, {}
    for name, files in listing.items():
        train_rows, test_rows = hold_out_rows(torch.zeros(len(files), dtype=torch.long))
        train[name] = [files[row] for row in train_rows.tolist()]
        test[name] = [files[row] for row in test_rows.tolist()]
    return train, test


def as_images(listing: Listing, workers: int, channels: int = 3) -> FileImages:
    """Return the files labeled by the position of their class in the listing; call `resized` before reading them."""
    files = [file for class_files in listing.values() for file in class_files]
    labels = [label for label, class_files in enumerate(listing.values()) for _ in class_files]
    return FileImages(np.array(files, np.str_), torch.tensor(labels, dtype=torch.long), Resize(0), workers, channels)


def write_folders(images: MemoryImages, names: dict[int, str], root: Path) -> int:
    """Write images as PNG files into one new sub-folder of `root` per class; return how many were written. `names` maps
    the labels to write to class names."""
    written = 0
    for label, name in names.items():
        folder = root / safe_file_name(name)
        try:
            folder.mkdir(parents=True)
            for number, row in enumerate((images.labels == label).nonzero().flatten().tolist()):
                pixels = images.pixels[row].permute(1, 2, 0).squeeze(2).numpy()
                Image.fromarray(np.ascontiguousarray(pixels)).save(folder / f"{number:05}.png")
                written += 1
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise EtagError(f"'{folder}' cannot be written: {reason}; '{root}' is incomplete: remove it.") from error
    return written


def image_sizes(files: Sequence[str]) -> list[tuple[int, int]]:
    """Return (width, height) of each image; all files that cannot be opened are listed in one EtagError."""
    sizes, unreadable = [], []
    for file in files:
        try:
            sizes.append(image_size(file))
        except UnreadableImage as reason:
            unreadable.append(f"{file} ({reason})")
    if unreadable:
        raise unreadable_error(unreadable)
    return sizes


def common_size(files: Sequence[str]) -> int:
    """Return the side in pixels if all images are squares of one size; otherwise raise an EtagError."""
    sizes = set(image_sizes(files))
    if len(sizes) == 1 and len(set(*sizes)) == 1:
        return sizes.pop()[0]
    low, high = min(sizes), max(sizes)
    shape = f"from {low[0]}x{low[1]} to {high[0]}x{high[1]}" if len(sizes) > 1 else f"{low[0]}x{low[1]}"
    raise EtagError(
        f"the images are not squares of one size ({shape} pixels): set the side to resize them to with "
        "--set data.size=N, such as 32, 64 or 224."
    )
