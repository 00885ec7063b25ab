"""Tables that can be written as HTML, CSV, Markdown and LaTeX."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import StringIO
from itertools import accumulate, groupby

from etag.core.text import MISSING, fixed
from etag.report.quantities import Spread

BEST, SECOND = 1, 2
LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "†": r"$^\dagger$",
    "‡": r"$^\ddagger$",
    "−": "$-$",
    "×": r"$\times$",
    "τ": r"$\tau$",
    MISSING: "--",
}


@dataclass(frozen=True)
class Cell:
    """A number or word as people read it, with its value and deviation for programs."""

    text: str
    value: float | None = None
    deviation: float | None = None
    rank: int = 0  # BEST or SECOND of its column; 0 is neither


@dataclass(frozen=True)
class Column:
    """The heading of a column; neighbors of one group share a second heading above theirs."""

    name: str
    group: str = ""
    number: bool = True
    title: str = ""  # an explanation of the heading


@dataclass(frozen=True)
class Row:
    """One row of a table; its first cell is its heading."""

    cells: Sequence[Cell]
    shaded: bool = False
    ruled: bool = False  # a line above


EMPTY = Cell(MISSING)


def number_cell(value: float | None, decimals: int = 2, deviation: float | None = None, rank: int = 0) -> Cell:
    """A number and, if there is one, its deviation; an empty cell for None."""
    if value is None:
        return EMPTY
    text = Spread(value, deviation).text(lambda part: fixed(part, decimals))
    return Cell(text, value, deviation, rank)


def spread_cell(spread: Spread, decimals: int = 2, rank: int = 0) -> Cell:
    """Mean and deviation over seeds."""
    return number_cell(spread.mean, decimals, spread.deviation, rank)


@dataclass(frozen=True)
class Table:
    """Rows under headings, with notes. `name` is the name of its files, without ending."""

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The shared headings with the number of columns under each; empty if no column has one."""
        runs = [(name, len(list(own))) for name, own in groupby(self.columns, key=lambda column: column.group)]
        return runs if any(name for name, _ in runs) else []

    @property
    def starts(self) -> list[int]:
        """The index of the first column of every group."""
        return [
            start
            for start, (name, _) in zip(accumulate([0] + [n for _, n in self.groups]), self.groups, strict=False)
            if name
        ]

    def csv(self) -> str:
        """Plain numbers; deviations have columns of their own."""
        spread = [
            any(row.cells[place].deviation is not None for row in self.rows) for place in range(len(self.columns))
        ]
        lines = [_flat([[heading, f"{heading} std"] for heading in self._headings], spread)]
        lines += [_flat([_plain(cell) for cell in row.cells], spread) for row in self.rows]
        return rows_csv(lines)

    def markdown(self) -> str:
        """A pipe table with the notes under it."""
        sides = ["---:" if column.number else ":---" for column in self.columns]
        rows = [[_marked(cell, "**{}**", "<u>{}</u>", _markdown) for cell in row.cells] for row in self.rows]
        lines = [f"| {' | '.join(line)} |" for line in [list(map(_markdown, self._headings)), sides, *rows]]
        notes = [f"\n{_markdown(note)}" for note in self.notes]
        return "\n".join([f"{_markdown(self.caption)}\n", *lines, *notes]) + "\n"

    def latex(self) -> str:
        """A `tabular` for booktabs and colortbl, without a float around it."""
        sides = "".join("r" if column.number else "l" for column in self.columns)
        lines = [f"% {_latex(self.caption)}", rf"\begin{{tabular}}{{{sides}}}", r"\toprule", *self._latex_heads()]
        for row in self.rows:
            lines += [r"\midrule"] * row.ruled + [r"\rowcolor[gray]{0.92}"] * row.shaded
            cells = [_marked(cell, r"\textbf{{{}}}", r"\underline{{{}}}", _latex) for cell in row.cells]
            lines.append(" & ".join(cells) + r" \\")
        return (
            "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *(f"% {_latex(note)}" for note in self.notes)])
            + "\n"
        )

    def _latex_heads(self) -> list[str]:
        names = " & ".join(_latex(column.name) for column in self.columns)
        groups = " & ".join(rf"\multicolumn{{{span}}}{{c}}{{{_latex(name)}}}" for name, span in self.groups)
        return [*([groups + r" \\"] if groups else []), names + r" \\", r"\midrule"]

    @property
    def _headings(self) -> list[str]:
        return [f"{column.group} {column.name}".strip() for column in self.columns]


def rows_csv(rows: Sequence[Sequence[object]]) -> str:
    """Lines of comma-separated values."""
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _flat(pairs: Sequence[Sequence[str]], spread: Sequence[bool]) -> list[str]:
    return [word for pair, both in zip(pairs, spread, strict=True) for word in (pair if both else pair[:1])]


def _plain(cell: Cell) -> tuple[str, str]:
    if cell.value is None:
        return ("" if cell == EMPTY else cell.text, "")
    return (_digits(cell.value), "" if cell.deviation is None else _digits(cell.deviation))


def _digits(value: float) -> str:
    return repr(round(value, 4) + 0.0).removesuffix(".0")


def _marked(cell: Cell, best: str, second: str, escape: Callable[[str], str]) -> str:
    form = {BEST: best, SECOND: second}.get(cell.rank, "{}")
    return form.format(escape(cell.text))


def _markdown(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "\\|*_<" else letter for letter in text)


def _latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)
