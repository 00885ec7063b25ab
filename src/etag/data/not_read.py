"""What a folder holds besides the images that are read: counted, so that nothing is left out without a word."""

import os
import re
from pathlib import Path

from etag.data.formats import how_to_read

JUNK = {"thumbs.db", "ehthumbs.db", "desktop.ini", ".ds_store", "icon\r"}  # of file managers: not worth a word
MOST = 8  # kinds that are named
NO_ENDING = "without an ending"


class NotRead:
    """Counts files that are not read, by kind, with an example of each kind."""

    def __init__(self, root: str | Path | None = None) -> None:
        self._root = root  # examples are named relative to it
        self._ignored: set[str] = set()
        self.kinds: dict[str, tuple[int, str]] = {}

    def ignore(self, path: str | Path) -> None:
        """Never count this file."""
        self._ignored.add(os.path.abspath(path))

    def add(self, path: str, kind: str | None = None) -> None:
        """Count a file; without a kind, that of its ending. Hidden files and junk do not count."""
        name = os.path.basename(path)
        if name.startswith(".") or name.lower() in JUNK or os.path.abspath(path) in self._ignored:
            return
        kind = kind or _ending(name)
        count, example = self.kinds.get(kind, (0, path if self._root is None else os.path.relpath(path, self._root)))
        self.kinds[kind] = count + 1, example

    def __str__(self) -> str:
        """One line; empty if there is nothing to say."""
        often = sorted(self.kinds.items(), key=lambda entry: -entry[1][0])
        parts = [_in_words(kind, count, example) for kind, (count, example) in often[:MOST]]
        if rest := often[MOST:]:
            parts.append(f"{sum(count for _, (count, _) in rest)} of {len(rest)} other kinds")
        return f"not read: {', '.join(parts)}" if parts else ""

    def to_json(self) -> list[dict[str, str | int]]:
        """As JSON values."""
        return [{"kind": kind, "count": count, "example": example} for kind, (count, example) in self.kinds.items()]


def _ending(name: str) -> str:
    ending = os.path.splitext(name)[1].lower()
    return ending if re.fullmatch(r"\.[^\s.]{1,12}", ending) else NO_ENDING


def _in_words(kind: str, count: int, example: str) -> str:
    hint = how_to_read(kind)
    return f"{count} {kind} (such as {example}{f'; {hint}' if hint else ''})"
