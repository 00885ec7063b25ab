"""Printing. Everything that a command prints goes through here, so that no name can do anything to a terminal."""

import json
import sys
from collections.abc import Callable
from typing import Any

import typer

from etag.core.text import printable


def echo(line: str, err: bool = False) -> None:
    """Print one line; control characters, except tabs, are printed as visible escapes."""
    typer.echo(printable(line, keep="\t"), err=err)


def asker() -> Callable[[str], bool] | None:
    """What asks a question and returns whether the answer is yes; None if nobody is at the terminal to answer."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    return lambda question: typer.confirm(printable(question), default=True)


def echo_lines(text: str) -> None:
    """Print a text of several lines."""
    for line in text.removesuffix("\n").split("\n"):
        echo(line)


def echo_json(value: Any, indent: int | None = None) -> None:
    """Print JSON in ASCII."""
    echo_lines(json.dumps(value, indent=indent).replace("\x7f", r"\u007f"))  # the only one that JSON does not escape


def print_table(rows: list[list[str]], columns: tuple[str, ...] = (), dim: int | None = None) -> None:
    """Print rows below the names of the columns, if there are any; `dim` is the number of a column in gray."""
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    headers = [Column(name, overflow="fold") for name in columns]
    table = Table(*headers, box=None, show_header=bool(columns), header_style="bold")
    for row in rows:
        table.add_row(*(Text(printable(cell), "dim" if place == dim else "") for place, cell in enumerate(row)))
    Console(highlight=False).print(table)
