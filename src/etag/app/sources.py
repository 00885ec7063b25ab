"""The images of a data source as plain folders, for users who have none of their own yet."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from etag.core.errors import EtagError, unknown_name
from etag.data.folders import write_folders
from etag.data.images import EncodedImages, FileImages
from etag.data.rows import first_rows_per_class
from etag.data.source import SOURCES, DataOptions


def source_folders(
    name: str,
    out: Path,
    classes: str | None = None,
    per_class: int | None = None,
    part: str = "train",
    path: str | None = None,
) -> tuple[int, int]:
    """Write them; returns the numbers of images and of classes. `path` is the folder of the source's own files."""
    if os.path.lexists(out) and not (os.path.isdir(out) and os.access(out, os.R_OK) and not os.listdir(out)):
        raise EtagError(f"'{out}' exists already: choose another folder.")
    dataset = SOURCES[name].open(DataOptions(name=name, path=path))
    images = dataset.train if part == "train" else dataset.test
    if isinstance(images, FileImages):
        raise EtagError(f"the images of '{name}' are in plain files already.")
    chosen = chosen_classes(classes, dataset.classes) if classes else dict(enumerate(dataset.classes))
    images = images.select(torch.isin(images.labels, torch.tensor(list(chosen))).nonzero().flatten())
    images = images.select(first_rows_per_class(images.labels, per_class))
    if isinstance(images, EncodedImages):
        images = images.in_memory()
    return write_folders(images, chosen, out), len(chosen)


def chosen_classes(text: str, known: Sequence[str]) -> dict[int, str]:
    """The classes in a comma-separated list of names or numbers; a-b stands for all from a to b."""
    chosen: dict[int, str] = {}
    for word in map(str.strip, text.split(",")):
        if word in known:
            numbers = range(known.index(word), known.index(word) + 1)
        elif given := re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", word):
            numbers = range(int(given[1]), int(given[2] or given[1]) + 1)
        else:
            raise unknown_name("class", word, known)
        if not numbers or numbers[-1] >= len(known):
            raise EtagError(f"the classes '{word}' are not there: they are numbered from 0 to {len(known) - 1}.")
        chosen |= {number: known[number] for number in numbers}
    return chosen
