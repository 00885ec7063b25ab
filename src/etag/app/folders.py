"""From folders of images to lessons, and from paths to images to predict."""

import glob
import json
import os
import shlex
from collections.abc import Container, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from etag.app.labeled import AS_IT_IS, FolderOptions, LabeledFolder, read_folder
from etag.app.layouts import WHOLE
from etag.core.errors import EtagError
from etag.core.files import checksum
from etag.core.text import listing
from etag.data.folders import Listing, as_images, hold_out_files, is_image, list_images
from etag.data.images import Images, load_into_memory
from etag.data.not_read import NotRead
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
    own_split: bool = False  # the user has chosen the held-out images, which are then never learned


@dataclass(frozen=True)
class LessonFiles:
    """The files of a lesson, by class."""

    train: Listing  # to learn; every fifth of them is held out, unless the user has split the images
    held_out: Listing | None = None  # the user's own split: only evaluated
    split: tuple[str, ...] = ()  # lines for the user about that split
    left_out: tuple[str, ...] = ()  # lines for the user about what is not read

    @property
    def to_learn(self) -> list[str]:
        """The files of the lesson, without those of the user's own split."""
        return [file for files in self.train.values() for file in files]

    @property
    def all(self) -> list[str]:
        """All files."""
        return self.to_learn + [file for files in (self.held_out or {}).values() for file in files]

    def without(self, files: Container[str]) -> "LessonFiles":
        """The same without some files; a class that has no image left to learn is an error."""
        train, held_out = (
            {name: [file for file in own if file not in files] for name, own in part.items()}
            for part in (self.train, self.held_out or {})
        )
        if empty := [name for name, own in train.items() if not own]:
            raise EtagError(f"every image of {listing(empty)} is damaged: replace the images, or remove the folder.")
        return replace(self, train=train, held_out=None if self.held_out is None else held_out)


def lesson_files(
    folder: Path, known: Sequence[Name], update: bool = False, options: FolderOptions = AS_IT_IS
) -> LessonFiles:
    """The files of a folder of new classes, or of known ones for an update; raises an error for names that clash."""
    found = read_folder(folder, options, fewest=1 if known else 2, wanted=(("train",), ("val", "test")))
    files = _split(folder, found) if found.is_split else LessonFiles(found.parts[WHOLE])
    _check_names(folder, files.train, known, update)
    return replace(files, left_out=tuple(found.remarks))


def _split(folder: Path, found: LabeledFolder) -> LessonFiles:
    """The files of a data set that the user has split."""
    if "train" not in found.paths:
        raise EtagError(
            f"'{folder}' holds {listing(list(found.paths))}, but no train: pass a folder with one sub-folder per class."
        )
    train, part = found.parts["train"], next((name for name in ("val", "test") if name in found.parts), None)
    if part is None:
        return LessonFiles(train, split=(f"'{folder}' is split: train is learned, except for every fifth image.",))
    given, path = found.parts[part], found.paths[part]
    if unknown := sorted(set(given) - set(train)):
        raise EtagError(f"'{path}' has classes that '{found.paths['train']}' does not have: {', '.join(unknown)}.")
    lines = [f"'{folder}' is split: train is learned; {part} is held out, and never learned."]
    if part == "val" and "test" in found.paths:
        test = shlex.quote(str(found.paths["test"]))
        lines.append(f"test is not used: `etag evaluate MODEL {test}` evaluates it.")
    if untested := [name for name in train if name not in given]:
        lines.append(f"classes without images in {part}, which are not tested: {', '.join(untested)}.")
    return LessonFiles(train, {name: given.get(name, []) for name in train}, tuple(lines))


def _check_names(folder: Path, train: Listing, known: Sequence[Name], update: bool) -> None:
    """Raise an error for names that the model knows already (for an update: does not know), or that clash."""
    if update:
        if unknown := [name for name in train if name not in known]:
            raise EtagError(f"--update is for known classes, but these are new: {', '.join(unknown)}.")
        return
    if again := [name for name in train if name in known]:
        raise EtagError(
            f"'{folder}' holds classes that are known already ({', '.join(again)}): remove them, or pass their "
            "images with --update."
        )
    lower: dict[str, Name] = {str(name).casefold(): name for name in known}
    for name in train:
        other = lower.setdefault(name.casefold(), name)
        if other != name:
            raise EtagError(
                f"the classes '{other}' and '{name}' differ in upper and lower case only: rename one of them."
            )


def lesson_images(
    files: LessonFiles, about: ModelInfo, memory: int, workers: int, update: bool = False
) -> LessonImages:
    """A lesson from files. Unless the user has split them, every fifth image of a class is held out, the last one of a
    class of two to four, none of a class of one. They are decoded now if all fit into `memory` MiB."""
    names, resize = tuple(files.train), about.preprocess.resize
    parts = hold_out_files(files.train) if files.held_out is None else (files.train, files.held_out)
    train, held_out = (as_images(part, workers, about.channels).resized(resize) for part in parts)
    marks = [{name: [_fingerprint(file) for file in own] for name, own in part.items()} for part in parts]
    fingerprint = json.dumps([astuple(resize), marks])
    decoded = load_into_memory(train, held_out, memory)
    paths = (*train.files.tolist(), *held_out.files.tolist())
    return LessonImages(
        *decoded, names, checksum(fingerprint.encode()), update, paths, own_split=files.held_out is not None
    )


def _fingerprint(file: str) -> list[Any]:
    """What tells whether a file has changed."""
    try:
        status = os.stat(file)
    except OSError as error:
        raise EtagError(f"{file} disappeared while its folder was read: {error.strerror}.") from error
    return [file, status.st_size, status.st_mtime_ns]


def image_files(given: Sequence[str]) -> tuple[list[str], NotRead]:
    """The image files that paths stand for, and what else is in folders and patterns: files as they are, folders with
    everything below them, patterns. Without any image it is an error."""
    files: list[str] = []
    not_read = NotRead()
    for path in given:
        if os.path.isdir(path):
            files += list_images(Path(path), not_read)
        elif os.path.exists(path) or not glob.has_magic(path):
            files.append(path)
        else:
            files += _matches(path, not_read)
    if not files:
        paths = [f"'{path}'" for path in given]
        where = f"there are no images in {listing(paths, 3)}" if paths else "no image was given"
        raise EtagError(f"{where}{f' ({not_read})' if not_read.kinds else ''}: name files, folders or patterns.")
    return files, not_read


def _matches(pattern: str, not_read: NotRead) -> list[str]:
    """The image files that match a pattern, or are in a folder that does."""
    matches = sorted(glob.glob(pattern, recursive=True))
    if not matches:
        raise EtagError(f"no file matches '{pattern}'.")
    files = []
    for file in matches:
        if os.path.isdir(file):
            files += list_images(Path(file), not_read)
        elif is_image(file):
            files.append(file)
        else:
            not_read.add(file)
    return files
