"""What is said about the classes of a lesson before it begins: names and numbers, and what looks like a mistake."""

import re
import shutil
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations

from etag.app.layouts import PARTS
from etag.core.text import count_text, listing
from etag.data.folders import EMPTY_JUNK, Listing
from etag.learner.versions import Name

FAR_FEWER = 10  # times fewer images than the largest class
LONG = 4  # letters of a name, from which on one other letter may be a slip
NAMED = 10  # classes, or pairs of classes, on one line
JUNK = EMPTY_JUNK | {"new folder", "untitled folder", "images", "tmp", "temp", "backup", "thumbnails", ".thumbnails"}
JUNK |= {".ipynb_checkpoints", ".trash", "cache", "__pycache__", "copy", "unsorted"}
NUMBERED = re.compile(r"(.+?)(?: \(\d+\)| - copy)")  # as file managers name another one: New folder (2)


def class_lines(classes: Listing) -> list[str]:
    """All classes with their numbers of images, on as many lines as the terminal needs."""
    entries = [f"{name} {len(files)}" for name, files in classes.items()]
    width, lines = shutil.get_terminal_size().columns, [f"{count_text(len(classes), 'class', 'classes')}:"]
    for entry, end in zip(entries, [","] * (len(entries) - 1) + ["."], strict=True):
        if len(lines[-1]) + 1 + len(entry + end) > width:
            lines.append(" ")
        lines[-1] += f" {entry}{end}"
    return lines


def surprises(classes: Listing, known: Sequence[Name] = ()) -> list[str]:
    """What looks like a mistake in new classes, beside those that the model knows already; one line each."""
    lines = []
    if rare := _rare(classes):
        lines.append(f"rare classes are recognized less often; add images if you can: {listing(rare, NAMED)}.")
    if alike := _alike([*map(str, known)], list(classes)):
        pairs = listing([f"'{one}' and '{other}'" for one, other in alike], NAMED)
        lines.append(f"names that are nearly the same, so they may be one class: {pairs}.")
    if parts := [name for name in classes if name.casefold() in PARTS]:
        lines.append(f"these are learned as classes, but look like parts of a data set: {listing(parts, NAMED)}.")
    if junk := [name for name in classes if _is_junk(name)]:
        lines.append(f"these are learned as classes, but do not look like ones: {listing(junk, NAMED)}.")
    return lines


def _rare(classes: Listing) -> list[str]:
    """Classes with far fewer images than the largest one, with their numbers."""
    most = max(map(len, classes.values()))
    counts = {name: len(files) for name, files in classes.items() if FAR_FEWER * len(files) < most}
    return [
        f"{name} ({count_text(count, 'image', 'images')}, the largest class has {most})"
        for name, count in counts.items()
    ]


def _is_junk(name: str) -> bool:
    numbered = NUMBERED.fullmatch(name.casefold())
    return (numbered[1] if numbered else name.casefold()) in JUNK or (numbered is not None and " - copy" in numbered[0])


def _alike(known: list[str], new: list[str]) -> list[tuple[str, str]]:
    """Pairs of names that differ by one letter, or by a space or hyphen; at least one of each pair is new."""
    by_key = defaultdict(list)  # names that differ by one letter are equal once the right letter of each is left out
    for name in [*known, *new]:
        for key in {name.casefold(), _singular(name.casefold()), *_without_a_letter(name.casefold())}:
            by_key[key].append(name)
    pairs = {pair: None for names in by_key.values() for pair in combinations(names, 2)}
    return [(one, other) for one, other in pairs if other in new and _is_slip(one.casefold(), other.casefold())]


def _without_a_letter(name: str) -> set[str]:
    return {name[:place] + name[place + 1 :] for place in range(len(name))}


def _singular(name: str) -> str:
    """A name without the ending of a plural."""
    return f"{name[:-3]}y" if name.endswith("ies") else name.removesuffix("s")


def _is_slip(one: str, other: str) -> bool:
    """Whether two names differ by one letter that may be a slip: no digit, and no word by itself as in `type a`."""
    short, long = sorted((one, other), key=len)
    if _singular(long) == short:
        return True
    start = next((place for place, letter in enumerate(short) if letter != long[place]), len(short))
    rest = short[start + (len(short) == len(long)) :]
    if long[start + 1 :] != rest:
        return False
    changed = {long[start], short[start] if len(short) == len(long) else ""} - {""}
    word = f" {long} "[start : start + 3]
    by_itself = not word[0].isalnum() and not word[2].isalnum()
    return len(short) >= LONG and not by_itself and not any(map(str.isdigit, changed))
