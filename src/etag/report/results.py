"""The main tables of a group of runs: all metrics, agreement with the paper, differences to a reference."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from etag.core.text import fixed
from etag.evaluation.metrics import METRICS, Metric
from etag.experiments.paper import column_of, published
from etag.report.agreement import RESAMPLES, Agreement, agreement, paired
from etag.report.groups import MethodRuns, RunGroup
from etag.report.layout import layout
from etag.report.style import is_e_variant, method_title
from etag.report.tables import BEST, SECOND, Cell, Column, Row, Table, number_cell, spread_cell

CellsOf = tuple[Column, Sequence[Cell]]  # a column with its cells


def member_table(
    kind: str,
    group: RunGroup,
    members: Sequence[MethodRuns],
    columns: Sequence[CellsOf],
    notes: Sequence[str],
    heading: str = "method",
    titles: Sequence[str] | None = None,
) -> Table:
    """A table with one row per member; the rows have the members' titles, or `titles` under another heading."""
    names = [Cell(title) for title in titles or [member.title for member in members]]
    lines = zip(names, *(cells for _, cells in columns), strict=True)
    rows = [Row(line, is_e_variant(member.method)) for member, line in zip(members, lines, strict=True)]
    heads = [Column(heading, is_numeric=False), *(column for column, _ in columns)]
    return Table(f"{kind}-{group.slug}", group.title, heads, rows, notes)


def seeds_columns(members: Sequence[MethodRuns]) -> list[CellsOf]:
    """A column with the number of seeds of each member, if these numbers differ."""
    seeds = [len(member.runs) for member in members]
    return [(Column("seeds"), [number_cell(count, 0) for count in seeds])] if len(set(seeds)) > 1 else []


def results_table(group: RunGroup) -> Table:
    """Every metric of every method; the paper's values beside ours where the group stands for one of its columns."""
    columns: list[CellsOf] = []
    for metric in METRICS:
        ranks = _ranks(group, metric)
        cells = [spread_cell(member.spread(metric.name), rank=ranks.get(member.label, 0)) for member in group.all]
        columns.append((Column(f"{metric.name} ({metric.unit})", title=metric.definition), cells))
        if group.column:
            letters = [letter for letter, name in layout().letters.items() if name == metric.name]
            columns += [(Column(f"paper’s {letter}"), _printed(group, letter)) for letter in letters]
    titles = [f"{member.title}{' ‡' if member.stores_images else ''}" for member in group.all]
    columns += seeds_columns(group.all)
    table = member_table("results", group, group.all, columns, _notes(group), titles=titles)
    kinds = [_kind(member) for member in group.all]
    pairs = zip(table.rows, kinds, [kinds[0], *kinds], strict=False)
    return replace(table, rows=[replace(row, line_above=kind != before) for row, kind, before in pairs])


def _kind(member: MethodRuns) -> int:
    """Bounds, methods of the paper's Table 1, other methods, variants: a line separates them."""
    if member.is_variant:
        return 3
    return 0 if member.is_bound else 1 if member.method in published().methods else 2


def _printed(group: RunGroup, letter: str) -> list[Cell]:
    column, cells = group.column or "", []
    for member in group.all:
        result = None if member.is_variant else published().table1[column].get(member.method)
        cell = number_cell(getattr(result, letter, None), deviation=getattr(result, f"{letter}_std", None))
        doubtful = result is not None and published().doubt(column, member.method, letter)
        cells.append(replace(cell, text=f"{cell.text} †") if doubtful else cell)
    return cells


def _ranks(group: RunGroup, metric: Metric) -> dict[str, int]:
    """The best and the second-best member by label, bounds excepted. Values that are written alike are equal."""
    means = {member.label: member.spread(metric.name).mean for member in group.all if not member.is_bound}
    written = {label: float(fixed(mean, 2)) for label, mean in means.items() if math.isfinite(mean)}
    if len(written) < 2:
        return {}
    order = sorted(set(written.values()), reverse=metric.better == "higher")
    best = zip((BEST, SECOND), order, strict=False)
    return {label: rank for rank, value in best for label in written if written[label] == value}


def _notes(group: RunGroup) -> list[str]:
    notes = ["Bold is the best mean, underlined the second best; neither says that a difference is more than chance."]
    if any(len(member.runs) > 1 for member in group.all):
        notes[0] += " ± is the sample standard deviation over seeds."
    if bounds := [member.title for member in group.all if member.is_bound]:
        notes.append(f"Bounds, which are not ranked: {', '.join(bounds)}.")
    if any(is_e_variant(member.method) for member in group.all):
        notes.append("Shaded: eXX is XX with embedding distillation.")
    if any(member.stores_images for member in group.all):
        notes.append("‡ stores exemplars: images of earlier classes.")
    if group.column:
        wrong = (one for one in published().doubtful if one.column == group.column and one.method in group.members)
        notes.append(_stands_for(group, group.column))
        notes += [f"† As the paper prints it for {method_title(one.method)}: it {one.note}." for one in wrong]
    return [*notes, *_remarks(group)]


def _stands_for(group: RunGroup, column: str) -> str:
    same = ", ".join(f"the paper’s {letter} is set beside {name}" for letter, name in layout().letters.items())
    if column == column_of(group.metrics.data, group.metrics.split):
        return f"{group.title} has the data and split of the paper’s column {column}; {same}."
    data, _, tasks = column.rpartition("-")
    return (
        f"{group.title} is a smaller version of the paper’s {tasks} tasks on {data}: rankings can be compared, "
        f"values cannot; {same}."
    )


def _remarks(group: RunGroup) -> list[str]:
    """What runs say about themselves and every page must repeat, such as where frozen features come from."""
    members: dict[tuple[str, str], dict[str, None]] = {}  # by topic and remark: the titles of those that say so
    for member in group.all:
        for run in member.runs:
            for said in run.metrics.remarks.items():
                members.setdefault(said, {})[member.title] = None
    topics = dict.fromkeys(topic for topic, _ in members)
    return [
        f"{topic.capitalize()}: "
        + "; ".join(f"{remark} ({', '.join(titles)})" for (own, remark), titles in members.items() if own == topic)
        + "."
        for topic in topics
    ]


@dataclass(frozen=True)
class Ranking:
    """Our A and the paper's of the same methods, without the bounds."""

    group: RunGroup
    column: str
    members: list[MethodRuns]

    @property
    def theirs(self) -> list[float]:
        """The paper's A of each method."""
        return [published().table1[self.column][member.method].A for member in self.members]

    @cached_property
    def agreement(self) -> Agreement:
        """Kendall's tau-b of the two rankings."""
        return agreement([member.percents() for member in self.members], self.theirs)


def ranking(group: RunGroup) -> Ranking | None:
    """The two rankings, if the group stands for a column of the paper and has at least three of its methods."""
    members = [m for m in group.all if m.label in published().methods and not m.is_bound]
    return Ranking(group, group.column, members) if group.column and len(members) > 2 else None


def agreement_table(rankings: Sequence[Ranking]) -> Table:
    """Kendall's tau-b, one row per group."""
    columns = [Column("split", is_numeric=False), Column("paper’s column", is_numeric=False)]
    columns += [Column(name) for name in ("methods", "tau-b")]
    columns += [Column(name, group) for group in ("95 % over methods", "95 % over seeds") for name in ("from", "to")]
    rows = []
    for one in rankings:
        agreed = one.agreement
        ends = [number_cell(end) for end in (*agreed.over_methods, *(agreed.over_seeds or (None, None)))]
        first = [Cell(one.group.title), Cell(one.column), number_cell(agreed.methods, 0), number_cell(agreed.tau)]
        rows.append(Row([*first, *ends]))
    note = (
        "Kendall’s tau-b of A between our means and the paper’s, without bounds: 1 is the same order, 0 no relation, "
        f"−1 the reverse order. Over methods: {RESAMPLES} resamples of the methods, that is, what another choice of "
        "methods could have given. Over seeds: Student’s interval of the mean tau of single seeds."
    )
    return Table("agreement", "Agreement of our ranking with the paper’s", columns, rows, [note])


def paired_table(group: RunGroup, reference: MethodRuns) -> Table | None:
    """The reference's A minus that of each other member, over the seeds that both have; None without shared seeds."""
    pairs = [(m, paired(reference.percents(), m.percents())) for m in group.all if m is not reference]
    members = [member for member, one in pairs if one]
    differences = [one for _, one in pairs if one]
    if not differences:
        return None
    ends = [one.interval or (None, None) for one in differences]
    columns = [
        (
            Column(f"{reference.title}’s A minus its A (points)"),
            [_signed(spread_cell(one.difference)) for one in differences],
        ),
        (Column("95 % from"), [number_cell(low) for low, _ in ends]),
        (Column("to"), [number_cell(high) for _, high in ends]),
        (Column("shared seeds"), [Cell(", ".join(map(str, one.seeds))) for one in differences]),
    ]
    note = (
        "Differences of A_weighted seed by seed: mean ± standard deviation, and Student’s 95 % interval of the mean, "
        "without correction for the number of comparisons. Where the interval includes zero, the difference may be "
        "chance."
    )
    return member_table("paired", group, members, columns, [note])


def _signed(cell: Cell) -> Cell:
    return cell if cell.text.startswith("-") else replace(cell, text=f"+{cell.text}")
