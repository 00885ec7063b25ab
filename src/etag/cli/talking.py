"""How commands talk to people: on a terminal they ask questions and show live progress."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from etag.cli.printing import echo
from etag.core.text import printable

if TYPE_CHECKING:
    from etag.app.labeled import FolderOptions
    from etag.app.talk import Talk


def terminal_talk(verbose: bool = False, quiet: bool = False) -> "Talk":
    """Lines on standard output, none if `quiet`; questions only where somebody can answer."""
    from etag.app.talk import Talk
    from etag.learner.learner import print_nothing

    return Talk(
        print_line=print_nothing if quiet else echo, ask=asker(default=False), shows_progress=not quiet, verbose=verbose
    )


def asker(default: bool) -> Callable[[str], bool] | None:
    """What asks a question and returns whether the answer is yes; None if nobody is at the terminal to answer."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    return lambda question: typer.confirm(printable(question), default=default)


def folder_options(labels: str | None, nested: bool, ask: bool = True) -> "FolderOptions":
    """How the user wants a folder of images to be read."""
    from etag.app.labeled import FolderOptions

    return FolderOptions(labels, nested, asker(default=True) if ask else None)
