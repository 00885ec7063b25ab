"""Text for people: percentages, durations, sizes, counts; and names that somebody else chose, made harmless."""

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

MISSING = "–"
# control characters, line separators, what turns the direction of writing around, and halves of characters
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_FORMULA = re.compile(r"[=+@]|-(?!\d+(\.\d+)?([eE][-+]?\d+)?$)")  # how a spreadsheet's formula begins; not a number
_BRIEF = 80


def printable(text: str, keep: str = "") -> str:
    """The text with every character that could confuse a terminal as a visible escape, such as \\x1b; `keep` names
    characters to leave as they are."""
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), text)


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def csv_cell(value: Any) -> Any:
    """A cell of a CSV file: a text is printable, and an apostrophe keeps a spreadsheet from reading it as a formula."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if _FORMULA.match(text) else text


def brief(value: Any) -> str:
    """A value as an error message quotes it: on one line, and not longer than a line."""
    text = repr(value)
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF]}…"


def percent(fraction: float) -> str:
    """A fraction of 1 as a percentage with one decimal, without the percent sign."""
    return fixed(100 * fraction, 1)


def fixed(value: float, decimals: int) -> str:
    """A number with this many decimals; a dash for NaN."""
    # adding 0.0 turns a rounded -0.0 into 0.0
    return MISSING if math.isnan(value) else f"{round(value, decimals) + 0.0:.{decimals}f}"


def duration(seconds: float) -> str:
    """Seconds in their two largest units: 59.9 s, 1 min 35 s, 3 h 34 min."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def data_size(count: float) -> str:
    """Bytes with three significant digits and a decimal prefix: 2.66 MB."""
    return f"{_scaled(count)}B"


def short_count(count: float) -> str:
    """A number with three significant digits and a decimal prefix: 43.2 M."""
    return _scaled(count).rstrip()


def exact_count(count: float) -> str:
    """A whole number with all its digits: 43,203,044."""
    return f"{count:,.0f}"


def count_text(count: int, one: str, several: str) -> str:
    """A number of things in words: 1 class, 2 classes."""
    return f"{count:,} {one if count == 1 else several}"


def now() -> str:
    """The date and time, in UTC, as files and people have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def date_text(date: str) -> str:
    """Such a date and time, to the minute."""
    return f"{date[:16].replace('T', ' ')} UTC"


def task_sizes(classes_per_task: Sequence[int]) -> str:
    """Classes of each task, with equal neighbors counted: 50 + 10 × 5."""
    runs = [(len(list(equal)), size) for size, equal in groupby(classes_per_task)]
    return " + ".join(f"{count} × {size}" if count > 1 else str(size) for count, size in runs)


def listing(words: Sequence[str], named: int | None = None) -> str:
    """Words as a sentence lists them: a, b and c. Of many, only the first `named` and the number of the others."""
    if named is not None and len(words) > named + 1:
        words = [*words[:named], f"{len(words) - named} others"]
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _scaled(count: float) -> str:
    prefixes = ["", "k", "M", "G", "T"]
    while abs(count) >= 999.5 and len(prefixes) > 1:
        count /= 1000
        del prefixes[0]
    decimals = 0 if prefixes[0] == "" or abs(count) >= 99.95 else 1 if abs(count) >= 9.995 else 2
    return f"{count:.{decimals}f} {prefixes[0]}"
