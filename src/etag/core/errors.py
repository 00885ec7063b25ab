"""Errors that are shown to the user without a traceback."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from etag.core.text import brief


class EtagError(Exception):
    """A problem that the user can fix; its text says what is wrong, where, and what to do."""


class Diverged(EtagError):
    """The loss or the weights became NaN or infinite during training."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> EtagError:
    """Return the error for an unknown name; it suggests the most similar known one and lists all."""
    return EtagError(f"unknown {kind} {brief(name)}: {known_names(name, sorted(known))}.")


def known_names(name: str, known: Sequence[str]) -> str:
    """What to say of an unknown name: the most similar known one, and all of them."""
    similar = get_close_matches(name, known, n=1)
    hint = f"did you mean '{similar[0]}'? Known" if similar else "known"
    return f"{hint} are {', '.join(known) or 'none'}"
