"""From folders of images to lessons, and from paths to images that are to be recognized."""

import glob
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from etag.app.bundle import Name
from etag.app.learning import Material
from etag.core.errors import EtagError
from etag.core.files import checksum
from etag.data.decode import ENDINGS
from etag.data.folders import Listing, as_images, hold_out_files, list_classes, list_images


def lesson_files(folder: Path, known: Sequence[Name], update: bool = False) -> Listing:
    """The files of a folder of new classes, or of known ones; complaints about names that would not do."""
    listing = list_classes(folder, fewest=1 if known else 2)
    if update:
        if strange := [name for name in listing if name not in known]:
            raise EtagError(f"--update is for known classes, but these are new: {', '.join(strange)}.")
        return listing
    if again := [name for name in listing if name in known]:
        raise EtagError(
            f"'{folder}' holds classes that are known already ({', '.join(again)}): take them out, or give their "
            "images with --update."
        )
    lower: dict[str, Any] = {str(name).casefold(): name for name in known}
    for name in listing:
        other = lower.setdefault(name.casefold(), name)
        if other != name:
            raise EtagError(
                f"the classes '{other}' and '{name}' differ in upper and lower case only: rename one of the folders."
            )
    return listing


def material(listing: Listing, side: int, memory: int, workers: int, update: bool = False) -> Material:
    """A lesson from files: every fifth image of a class is held out."""
    names = tuple(listing)
    train, held_out = (as_images(part, names, workers).resized(side) for part in hold_out_files(listing))
    mark = json.dumps([side, {name: [_mark(file) for file in files] for name, files in listing.items()}])
    fingerprint = checksum(mark.encode())
    if train.nbytes + held_out.nbytes > memory * 2**20:
        return Material(train, held_out, names, fingerprint, update)
    both, rows = train.join([held_out]).in_memory(), torch.arange(len(train) + len(held_out))
    return Material(both.select(rows[: len(train)]), both.select(rows[len(train) :]), names, fingerprint, update)


def _mark(file: str) -> list[Any]:
    """What tells whether a file is still the one it was."""
    try:
        found = os.stat(file)
    except OSError as error:
        raise EtagError(f"{file} went away while its folder was read: {error.strerror}.") from error
    return [file, found.st_size, found.st_mtime_ns]


def image_files(paths: Iterable[str]) -> Iterator[str]:
    """The image files that paths stand for: files as they are, folders with all below them, patterns."""
    for path in paths:
        if os.path.isdir(path):
            yield from list_images(Path(path))
        elif os.path.exists(path) or not glob.has_magic(path):
            yield path
        elif found := sorted(glob.glob(path, recursive=True)):
            for file in found:
                if os.path.isdir(file):
                    yield from list_images(Path(file))
                elif os.path.splitext(file)[1].lower() in ENDINGS:
                    yield file
        else:
            raise EtagError(f"nothing matches '{path}'.")
