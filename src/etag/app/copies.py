"""Images that are in a folder more than once: with the same content, or nearly the same."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from etag.app.near_copies import SMALLEST, near_copies
from etag.data.decode import Pixels
from etag.data.images import FileImages, content_keys
from etag.data.inspection import Sides


@dataclass(frozen=True)
class Copies:
    """Groups of files. Each group is in one list."""

    across_classes: list[list[str]]  # the same content in several classes
    across_parts: list[list[str]]  # the same content in one class, but in several parts of a split
    within: list[list[str]]  # the same content in one class and one part
    near: list[list[str]]  # nearly the same images; of files with the same content the first


def find_copies(images: FileImages, thumbnails: Pixels, sides: Sides, part_of: Mapping[str, str]) -> Copies:
    """Find files of the same content, by checksum, and images that are nearly the same, by thumbnails."""
    groups = defaultdict(list)
    for row, key in enumerate(content_keys(images)):
        groups[key].append(row)
    found = Copies([], [], [], [])
    for rows in groups.values():
        if len(rows) > 1:
            copies = images.select(torch.tensor(rows))
            files = copies.files.tolist()
            across_classes = len(set(copies.labels.tolist())) > 1
            across_parts = len({part_of[file] for file in files}) > 1
            kind = found.across_classes if across_classes else found.across_parts if across_parts else found.within
            kind.append(files)
    different = [rows[0] for rows in groups.values() if sides[rows[0]] >= SMALLEST]
    for group in near_copies(thumbnails[different]):
        found.near.append(images.files[[different[row] for row in group]].tolist())
    return found
