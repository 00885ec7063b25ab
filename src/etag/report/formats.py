"""Numbers as people read them."""

import math
from collections.abc import Sequence
from itertools import groupby

MISSING = "–"


def percent(fraction: float) -> str:
    """A fraction of 1 as a percentage with one decimal, without the sign."""
    return fixed(100 * fraction, 1)


def fixed(value: float, decimals: int) -> str:
    """A number with so many decimals."""
    # adding 0.0 turns a rounded -0.0 into 0.0
    return MISSING if math.isnan(value) else f"{round(value, decimals) + 0.0:.{decimals}f}"


def duration(seconds: float) -> str:
    """Seconds in the two largest units that matter."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def data_size(count: float) -> str:
    """Bytes with a decimal prefix."""
    return f"{_scaled(count)}B"


def short_count(count: float) -> str:
    """A large number with a decimal prefix."""
    return _scaled(count).rstrip()


def exact_count(count: float) -> str:
    """A whole number with all its digits."""
    return f"{count:,.0f}"


def task_sizes(classes_per_task: Sequence[int]) -> str:
    """Classes of each task, equal ones in a row counted: 50 + 10 × 5."""
    runs = [(len(list(equal)), size) for size, equal in groupby(classes_per_task)]
    return " + ".join(f"{count} × {size}" if count > 1 else str(size) for count, size in runs)


def _scaled(count: float) -> str:
    """Three digits that count, and the prefix of a unit."""
    prefixes = ["", "k", "M", "G", "T"]
    while abs(count) >= 999.5 and len(prefixes) > 1:
        count /= 1000
        del prefixes[0]
    decimals = 0 if prefixes[0] == "" or abs(count) >= 99.95 else 1 if abs(count) >= 9.995 else 2
    return f"{count:.{decimals}f} {prefixes[0]}"
