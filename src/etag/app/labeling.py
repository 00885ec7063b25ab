"""Labels that are not names of folders: from a CSV file, or from the names of files in one folder."""

import csv
import io
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from etag.core.errors import EtagError
from etag.core.reading import read_limited
from etag.core.text import brief, listing
from etag.data.folders import Listing, is_image, list_images, visible_entries
from etag.data.not_read import NotRead

NAMES = "names"  # in place of a CSV file
LARGEST = 1 << 27  # bytes of a CSV file
LONGEST = 255  # characters of a label
NAMED = 20  # files that one error names
NUMBERED = re.compile(r"(.*?)[\s_.-]*(?:\d+|\(\d+\))")  # a label, a separator, and a number at the end


def labeled_by(labels: str, folder: Path, not_read: NotRead) -> Listing:
    """The images of a folder by their labels: from the names of its files, or from a CSV file."""
    return _by_names(folder, not_read) if labels == NAMES else _by_csv(Path(labels), folder, not_read)


def _by_names(folder: Path, not_read: NotRead) -> Listing:
    """Labels from names such as cat-001.jpg, cat_2.png and cat (3).jpg: the name without its number."""
    folders, files = visible_entries(folder)
    if deeper := [file for name in folders for file in list_images(folder / name)]:
        raise EtagError(
            f"--labels names reads the images in '{folder}' itself, but {len(deeper)} are in folders below it (such as "
            f"{deeper[0]}): move them, or leave out --labels if these folders are the classes."
        )
    found, unnumbered = defaultdict(list), []
    for file in files:
        numbered = NUMBERED.fullmatch(os.path.splitext(file)[0])
        if not is_image(file):
            not_read.add(os.path.join(folder, file))
        elif numbered and numbered[1]:
            found[numbered[1]].append(os.path.join(folder, file))
        else:
            unnumbered.append(file)
    if unnumbered:
        raise EtagError(
            f"--labels names needs names of a class and a number, such as cat-001.jpg, but '{folder}' holds "
            f"{listing(unnumbered, NAMED)}: rename the files, or give the labels in a CSV file."
        )
    return dict(sorted(found.items()))


def _by_csv(file: Path, folder: Path, not_read: NotRead) -> Listing:
    """Labels from the columns `path` and `label`; paths are relative to the image folder, or else to the file's own."""
    found: dict[str, tuple[str, str, int]] = {}  # by absolute path: path, label, line
    missing = []
    for line, text, label in _rows(file):
        path = _located(text, folder, file)
        if not _exists(path):
            missing.append(f"{text} (line {line})")
            continue
        _, other, first = found.setdefault(os.path.abspath(path), (path, label, line))
        if other != label:
            raise EtagError(
                f"{file} gives {text} two labels: {brief(other)} in line {first} and {brief(label)} in line {line}: "
                "leave only one of them."
            )
    if missing:
        raise EtagError(
            f"{file} names files that were not found in '{folder}': {listing(missing, NAMED)}; correct the paths."
        )
    not_read.ignore(file)
    for path in list_images(folder, not_read):
        if os.path.abspath(path) not in found:
            not_read.add(path, f"without a label in {file.name}")
    by_label = defaultdict(list)
    for path, label, _ in found.values():
        by_label[label].append(path)
    return {label: sorted(by_label[label]) for label in sorted(by_label)}


def _rows(file: Path) -> Iterator[tuple[int, str, str]]:
    """The number of the line, the path and the label of each row."""
    if not file.exists():
        raise EtagError(
            f"there is no file {file}: --labels needs a CSV file with the columns path and label, or 'names'."
        )
    try:
        rows = csv.reader(io.StringIO(read_limited(file, LARGEST).decode("utf-8-sig"), newline=""))
        columns = [name.strip().lower() for name in next(rows, [])]
        if not {"path", "label"} <= set(columns):
            raise EtagError(
                f"{file} has no header that names the columns path and label, separated by commas: add one."
            )
        path, label = columns.index("path"), columns.index("label")
        for row in rows:
            cells = [row[place].strip() if place < len(row) else "" for place in (path, label)]
            if any(row) and not all(cells):
                raise EtagError(f"{file}: line {rows.line_num} has no {'label' if cells[0] else 'path'}: add it.")
            if len(cells[1]) > LONGEST:
                raise EtagError(f"{file}: line {rows.line_num} has a label of more than {LONGEST} characters.")
            if any(row):
                yield rows.line_num, cells[0], cells[1]
    except UnicodeDecodeError as error:
        raise EtagError(f"{file} cannot be read: it is not text in UTF-8.") from error
    except csv.Error as error:
        raise EtagError(f"{file} cannot be read as CSV: {error} (line {rows.line_num}).") from error


def _located(text: str, folder: Path, file: Path) -> str:
    """The path below the image folder, or else below the folder of the CSV file; one that leads out of both is an
    error."""
    inside = []
    for base in (str(folder), str(file.parent)):
        path = os.path.normpath(os.path.join(base, text))
        if os.path.abspath(path).startswith(os.path.join(os.path.abspath(base), "")):
            inside.append(path)
    if not inside:
        raise EtagError(f"{file} names {brief(text)}, which is not inside '{folder}': move the image there.")
    return next(filter(_exists, inside), inside[0])


def _exists(path: str) -> bool:
    try:
        return os.path.exists(path)
    except ValueError:  # a NUL
        return False
