"""Tables that can be written as HTML, CSV, Markdown and LaTeX."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import groupby

from etag.core.text import MISSING, csv_cell, fixed, printable
from etag.report.agreement import Spread

BEST, SECOND = 1, 2
MARKDOWN = str.maketrans({sign: f"\\{sign}" for sign in "\\|*_<[`"})
LATEX = str.maketrans(
    {
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
)


@dataclass(frozen=True)
class Cell:
    """A number or word as people read it, with its value and deviation for programs."""

    text: str
    value: float | None = None
    deviation: float | None = None
    rank: int = 0  # BEST or SECOND of its column; 0 is neither

    def marked(self, best: str, second: str, escapes: dict[int, str]) -> str:
        """The text with its letters escaped, inside `best` or `second` if it has that rank."""
        return {BEST: best, SECOND: second}.get(self.rank, "{}").format(escaped(self.text, escapes))


@dataclass(frozen=True)
class Column:
    """The heading of a column; neighbors of one group share a second heading above theirs."""

    name: str
    group: str = ""
    is_numeric: bool = True
    title: str = ""  # an explanation of the heading


@dataclass(frozen=True)
class Row:
    """One row of a table; its first cell is its heading."""

    cells: Sequence[Cell]
    shaded: bool = False
    line_above: bool = False  # a line above


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
    notes: Sequence[str] = ()

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The shared headings with the number of columns under each; empty if no column has one."""
        runs = [(name, len(list(own))) for name, own in groupby(self.columns, key=lambda column: column.group)]
        return runs if any(name for name, _ in runs) else []

    @property
    def starts(self) -> list[int]:
        """The index of the first column of every group."""
        names = ["", *(column.group for column in self.columns)]
        return [place for place, name in enumerate(names[1:]) if name and name != names[place]]

    def csv(self) -> str:
        """Plain numbers; deviations have columns of their own."""
        columns = []
        for place, heading in enumerate(self._headings):
            cells = [row.cells[place] for row in self.rows]
            columns.append([heading, *map(_plain, cells)])
            if any(cell.deviation is not None for cell in cells):
                columns.append([f"{heading} std", *(_digits(cell.deviation) for cell in cells)])
        return rows_csv(zip(*columns, strict=True))

    def markdown(self) -> str:
        """A pipe table with the notes under it."""
        heads = [escaped(heading, MARKDOWN) for heading in self._headings]
        sides = ["---:" if column.is_numeric else ":---" for column in self.columns]
        rows = [[cell.marked("**{}**", "<u>{}</u>", MARKDOWN) for cell in row.cells] for row in self.rows]
        lines = [f"| {' | '.join(line)} |" for line in [heads, sides, *rows]]
        notes = [f"\n{escaped(note, MARKDOWN)}" for note in self.notes]
        return "\n".join([f"{escaped(self.caption, MARKDOWN)}\n", *lines, *notes, ""])

    def latex(self) -> str:
        """A `tabular` for booktabs and colortbl, without a float around it."""
        sides = "".join("r" if column.is_numeric else "l" for column in self.columns)
        lines = [f"% {escaped(self.caption, LATEX)}", rf"\begin{{tabular}}{{{sides}}}", r"\toprule"]
        if self.groups:
            spans = [rf"\multicolumn{{{span}}}{{c}}{{{escaped(name, LATEX)}}}" for name, span in self.groups]
            lines.append(_latex_row(spans))
        lines += [_latex_row([escaped(column.name, LATEX) for column in self.columns]), r"\midrule"]
        for row in self.rows:
            lines += [r"\midrule"] * row.line_above + [r"\rowcolor[gray]{0.92}"] * row.shaded
            lines.append(_latex_row([cell.marked(r"\textbf{{{}}}", r"\underline{{{}}}", LATEX) for cell in row.cells]))
        lines += [r"\bottomrule", r"\end{tabular}", *(f"% {escaped(note, LATEX)}" for note in self.notes)]
        return "\n".join([*lines, ""])

    @property
    def _headings(self) -> list[str]:
        return [f"{column.group} {column.name}".strip() for column in self.columns]


def escaped(text: str, signs: dict[int, str]) -> str:
    """The text on one line, which neither a table nor a comment ends, with each of the signs replaced."""
    return printable(" ".join(text.split())).translate(signs)


def rows_csv(rows: Iterable[Sequence[object]]) -> str:
    """Lines of comma-separated values."""
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(csv_cell, row) for row in rows)
    return text.getvalue()


def _plain(cell: Cell) -> str:
    if cell.value is None:
        return "" if cell == EMPTY else cell.text
    return _digits(cell.value)


def _digits(value: float | None) -> str:
    return "" if value is None else repr(round(value, 4) + 0.0).removesuffix(".0")


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"
