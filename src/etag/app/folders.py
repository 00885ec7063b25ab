"""From folders of images to lessons, and from paths to images to predict."""

import glob
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from etag.core.errors import EtagError
from etag.core.files import checksum
from etag.data.folders import Listing, as_images, hold_out_files, list_classes, list_images
from etag.data.formats import ENDINGS
from etag.data.images import Images, load_into_memory
from etag.learner.versions import ModelInfo, Name


@dataclass(frozen=True)
class LessonImages:
    """The images of a lesson: to train on and held out, with the names of their classes by label."""

    train: Images
    held_out: Images
    names: tuple[Name, ...]
    fingerprint: str  # tells whether two lessons are about the same images
    update: bool = False  # more images of known classes; otherwise all classes are new
    files: tuple[str, ...] = ()  # of the images to train on, then of those held out; none if they were no files


def lesson_files(folder: Path, known: Sequence[Name], update: bool = False) -> Listing:
    """The files of a folder of new classes, or of known ones for an update; raises an error for names that clash."""
    listing = list_classes(folder, fewest=1 if known else 2)
    if update:
        if unknown := [name for name in listing if name not in known]:
            raise EtagError(f"--update is for known classes, but these are new: {', '.join(unknown)}.")
        return listing
    if again := [name for name in listing if name in known]:
        raise EtagError(
            f"'{folder}' holds classes that are known already ({', '.join(again)}): remove them, or pass their "
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


def lesson_images(listing: Listing, about: ModelInfo, memory: int, workers: int, update: bool = False) -> LessonImages:
    """A lesson from files: every fifth image of a class is held out, the last one of a class of two to four, none of a
    class of one. They are decoded now if all fit into `memory` MiB."""
    names, resize = tuple(listing), about.preprocess.resize
    train, held_out = (as_images(part, workers, about.channels).resized(resize) for part in hold_out_files(listing))
    files = {name: [_fingerprint(file) for file in class_files] for name, class_files in listing.items()}
    fingerprint = json.dumps([astuple(resize), files])
    decoded = load_into_memory(train, held_out, memory)
    paths = (*train.files.tolist(), *held_out.files.tolist())
    return LessonImages(*decoded, names, checksum(fingerprint.encode()), update, paths)


def _fingerprint(file: str) -> list[Any]:
    """What tells whether a file has changed."""
    try:
        status = os.stat(file)
    except OSError as error:
        raise EtagError(f"{file} disappeared while its folder was read: {error.strerror}.") from error
    return [file, status.st_size, status.st_mtime_ns]


def image_files(paths: Iterable[str]) -> Iterator[str]:
    """The image files that paths stand for: files as they are, folders with everything below them, patterns."""
    for path in paths:
        if os.path.isdir(path):
            yield from list_images(Path(path))
        elif os.path.exists(path) or not glob.has_magic(path):
            yield path
        elif matches := sorted(glob.glob(path, recursive=True)):
            for file in matches:
                if os.path.isdir(file):
                    yield from list_images(Path(file))
                elif os.path.splitext(file)[1].lower() in ENDINGS:
                    yield file
        else:
            raise EtagError(f"no file matches '{path}'.")
