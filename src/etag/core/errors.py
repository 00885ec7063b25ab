"""Errors that are shown to the user without a traceback."""

from collections.abc import Iterable
from difflib import get_close_matches

from etag.core.text import brief


class EtagError(Exception):
    """A problem that the user can fix; its text says what is wrong, where, and what to do."""


class Diverged(EtagError):
    """The loss or the weights became NaN or infinite during training."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> EtagError:
    """Return the error for an unknown name; it suggests the most similar known one and lists all."""
    names = sorted(known)
    similar = get_close_matches(name, names, n=1)
    hint = f"did you mean '{similar[0]}'? Known" if similar else "known"
    return EtagError(f"unknown {kind} {brief(name)}: {hint} are {', '.join(names) or 'none'}.")
