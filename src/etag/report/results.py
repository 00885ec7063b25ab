"""The main tables of a group of runs: all metrics, agreement with the paper, differences to a reference."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from etag.core.text import fixed
from etag.experiments.paper import column_of, printed
from etag.report.agreement import RESAMPLES, Agreement, agreement, paired
from etag.report.groups import MethodRuns, RunGroup, seeds_differ
from etag.report.layout import layout
from etag.report.quantities import QUANTITIES, Quantity
from etag.report.style import is_embedded, method_title
from etag.report.tables import BEST, EMPTY, SECOND, Cell, Column, Row, Table, number_cell, spread_cell

METHOD = Column("method", number=False)


def results_table(group: RunGroup) -> Table:
    """Every metric of every method and variant; the paper's values beside ours if the group stands for one of its
    columns."""
    members = list(group.members.values())
    columns, parts = [METHOD], [[Cell(_marked_title(member)) for member in members]]
    for quantity in QUANTITIES.values():
        ranks = _ranks(group, quantity)
        columns.append(Column(quantity.heading, title=quantity.definition))
        parts.append([spread_cell(m.percent_spread(quantity), rank=ranks.get(m.label, 0)) for m in members])
        letters = [letter for letter, name in layout().letters.items() if name == quantity.name]
        for letter in letters if group.column else []:
            columns.append(Column(f"paper’s {letter}"))
            parts.append([_printed(group.column or "", member, letter) for member in members])
    for column, cells in seeds_columns(members):
        columns.append(column)
        parts.append(cells)
    rows = []
    for place, line in enumerate(zip(*parts, strict=True)):
        member, before = members[place], members[max(0, place - 1)]
        rows.append(Row(line, shaded=is_embedded(member.method), ruled=_kind(before) != _kind(member)))
    return Table(f"results-{group.slug}", group.title, columns, rows, _notes(group))


def seeds_columns(members: Sequence[MethodRuns]) -> list[tuple[Column, list[Cell]]]:
    """A column with the number of seeds of each member, if these numbers differ."""
    if not seeds_differ(members):
        return []
    return [(Column("seeds"), [number_cell(len(member.runs), 0) for member in members])]


def _kind(member: MethodRuns) -> int:
    """Bounds, methods of the paper's Table 1, other methods, variants: a line separates them."""
    if member.is_variant:
        return 3
    return 0 if member.is_bound else 1 if member.method in printed().methods else 2


def _marked_title(member: MethodRuns) -> str:
    return f"{member.title}{' ‡' if member.stores_images else ''}"


def _printed(column: str, member: MethodRuns, letter: str) -> Cell:
    result = None if member.is_variant else printed().table1[column].get(member.method)
    if result is None:
        return EMPTY
    cell = number_cell(getattr(result, letter), deviation=getattr(result, f"{letter}_std"))
    return replace(cell, text=f"{cell.text} †") if printed().doubt(column, member.method, letter) else cell


def _ranks(group: RunGroup, quantity: Quantity) -> dict[str, int]:
    """The best and the second-best member by label, bounds excepted. Values that are written alike are equal."""
    means = {m.label: m.percent_spread(quantity).mean for m in group.competing}
    written = {label: float(fixed(mean, 2)) for label, mean in means.items() if math.isfinite(mean)}
    if len(written) < 2:
        return {}
    order = sorted(set(written.values()), reverse=quantity.better == "higher")
    best = zip((BEST, SECOND), order, strict=False)
    return {label: rank for rank, value in best for label in written if written[label] == value}


def _notes(group: RunGroup) -> list[str]:
    members = list(group.members.values())
    several = any(len(member.runs) > 1 for member in members)
    notes = ["Bold is the best mean, underlined the second best; neither says that a difference is more than chance."]
    if several:
        notes[0] += " ± is the sample standard deviation over seeds."
    if bounds := [member.title for member in members if member.is_bound]:
        notes.append(f"References that are not ranked: {', '.join(bounds)}.")
    if any(is_embedded(member.method) for member in members):
        notes.append("Shaded: eXX is XX with embedding distillation.")
    if any(member.stores_images for member in members):
        notes.append("‡ stores exemplars: images of earlier classes.")
    if group.column:
        notes += [_stands_for(group), *_doubts(group)]
    return [*notes, *remarks(group)]


def _doubts(group: RunGroup) -> list[str]:
    wrong = (one for one in printed().doubtful if one.column == group.column and one.method in group.members)
    return [f"† As the paper prints it for {method_title(one.method)}: it {one.note}." for one in wrong]


def _stands_for(group: RunGroup) -> str:
    column, letters = group.column or "", layout().letters
    same = ", ".join(f"the paper’s {letter} is set beside {name}" for letter, name in letters.items())
    if column == column_of(group.metrics.data, group.metrics.split):
        return f"{group.title} has the data and split of the paper’s column {column}; {same}."
    data, _, tasks = column.rpartition("-")
    return (
        f"{group.title} stands for the paper’s {tasks} tasks on {data}, a larger problem: rankings can be compared, "
        f"values cannot; {same}."
    )


def remarks(group: RunGroup) -> list[str]:
    """What runs say about themselves and every page must repeat, such as where frozen features come from."""
    found = (
        f"{member.title}, {name}: {remark}."
        for member in group.members.values()
        for run in member.runs
        for name, remark in run.metrics.remarks.items()
    )
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Ranking:
    """Our A and the paper's of the same methods, without the bounds."""

    group: RunGroup
    column: str
    members: list[MethodRuns]

    @property
    def theirs(self) -> list[float]:
        """The paper's A of each method."""
        return [printed().table1[self.column][member.method].A for member in self.members]

    @property
    def ours(self) -> list[float]:
        """Our mean A of each method."""
        return [member.percent_spread().mean for member in self.members]

    @cached_property
    def agreement(self) -> Agreement:
        """Kendall's tau-b of the two rankings."""
        return agreement([list(member.percents().values()) for member in self.members], self.theirs)


def ranking(group: RunGroup) -> Ranking | None:
    """The two rankings, if the group stands for a column of the paper and has at least three of its methods."""
    members = [m for m in group.methods if m.method in printed().methods and not m.is_bound]
    return Ranking(group, group.column, members) if group.column and len(members) > 2 else None


def agreement_table(rankings: Sequence[Ranking]) -> Table:
    """Kendall's tau-b, one row per group."""
    columns = [Column("split", number=False), Column("paper’s column", number=False)]
    columns += [Column(name) for name in ("methods", "tau-b", "95 % from", "to")]
    rows = []
    for one in rankings:
        found = one.agreement
        low, high = found.interval or (None, None)
        cells = [Cell(one.group.title), Cell(one.column), number_cell(found.methods, 0), number_cell(found.tau)]
        rows.append(Row([*cells, number_cell(low), number_cell(high)]))
    note = (
        "Kendall’s tau-b of A between our means and the paper’s, without bounds: 1 is the same order, 0 no relation, "
        f"−1 the reverse order. The interval comes from {RESAMPLES} resamples of the seeds within each method."
    )
    return Table("agreement", "Agreement of our ranking with the paper’s", columns, rows, [note])


def paired_table(group: RunGroup, reference: MethodRuns) -> Table | None:
    """The reference's A minus that of each other member, over the seeds that both have; None without shared seeds."""
    others = [member for member in group.members.values() if member is not reference]
    found = [(m, difference) for m in others if (difference := paired(reference.percents(), m.percents()))]
    rows = []
    for member, one in found:
        low, high = one.interval or (None, None)
        mean = replace(spread_cell(one.difference), text=_signed(one.difference.text(_two)))
        cells = [Cell(member.title), mean, number_cell(low), number_cell(high)]
        rows.append(Row([*cells, Cell(", ".join(map(str, one.seeds)))], shaded=is_embedded(member.method)))
    heading = f"{reference.title}’s A minus its A (points)"
    columns = [METHOD, *(Column(name) for name in (heading, "95 % from", "to", "seeds"))]
    note = (
        "Differences of A_weighted seed by seed: mean ± standard deviation, and Student’s 95 % interval of the mean, "
        "without correction for the number of comparisons. Where the interval includes zero, the difference may be "
        "chance."
    )
    return Table(f"paired-{group.slug}", group.title, columns, rows, [note]) if rows else None


def _two(value: float) -> str:
    return fixed(value, 2)


def _signed(text: str) -> str:
    return text if text.startswith("-") else f"+{text}"
