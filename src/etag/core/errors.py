"""Errors that are meant for people."""

from collections.abc import Iterable
from difflib import get_close_matches


class EtagError(Exception):
    """Something the user can mend; its text is one sentence that says what, where, and what would be right."""


class Diverged(EtagError):
    """Training came to numbers that are none."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> EtagError:
    """The error for a name that is not among the known ones, with the nearest right one."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean '{near[0]}'? Known" if near else "known"
    return EtagError(f"unknown {kind} '{name}': {hint} are {', '.join(names) or 'none'}.")
