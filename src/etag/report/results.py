"""What a collection says of the methods: headlines, the paper's Table 1 with ours, agreement, paired differences."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from etag.evaluation.metrics import DEFINITIONS
from etag.experiments.paper import column_of, printed
from etag.report.agreement import Agreement, agreement, paired
from etag.report.collection import BOUNDS, OURS, Scene, keeps_images, percent_spread, percents
from etag.report.comparison import Entry, distances
from etag.report.formats import fixed, percent
from etag.report.quantities import A_WEIGHTED, ACCURACY_METRICS, Quantity
from etag.report.style import is_embedded, method_name
from etag.report.tables import BEST, EMPTY, SECOND, Cell, Column, Row, Table, number_cell, spread_cell

F_PAPER = next(quantity for quantity in ACCURACY_METRICS if quantity.name == "F_paper")
LETTERS = {"A": A_WEIGHTED, "F": F_PAPER}  # as the paper calls them
METHOD = Column("method", number=False)
DEFINED = (
    f"A is A_weighted: {DEFINITIONS['A_weighted']}. F is F_paper: best earlier accuracy minus the last, summed "
    "over past tasks and divided by the number of all tasks."
)


def headline(scene: Scene) -> str:
    """The best method that keeps no exemplars, and how far it is from the next, from any that is better, and from the
    bounds."""
    ranked = sorted(scene.some(scene.competing), key=lambda entry: entry.spread(A_WEIGHTED).mean, reverse=True)
    free = [entry for entry in ranked if not keeps_images(entry)]
    if not free:
        return f"{ranked[0].name} is the best method, at {ranked[0].spread(A_WEIGHTED).text(percent)} %."
    best = free[0]
    others = [*free[1:2], *ranked[: min(1, ranked.index(best))], *scene.some(BOUNDS)]
    reached = f"{best.name} is the best method that keeps no exemplars, at {best.spread(A_WEIGHTED).text(percent)} %"
    return f"{reached}: {distances(best, others)}." if others else f"{reached}."


def main_table(scenes: Sequence[Scene]) -> Table:
    """The form of the paper's Table 1; its values beside ours where a split stands for one of its columns."""
    methods = _in_order(scenes)
    blocks = [_block(scene, methods) for scene in scenes]
    rows = []
    for place, method in enumerate(methods):
        line = [Cell(_marked_name(method, scenes)), *(cell for _, cells in blocks for cell in cells[place])]
        before = methods[place - 1] if place else method
        rows.append(Row(line, shaded=is_embedded(method), ruled=_kind(before) != _kind(method)))
    columns = [METHOD, *(column for columns, _ in blocks for column in columns)]
    caption = "Average incremental accuracy A and forgetting F, mean ± standard deviation over seeds"
    return Table("table1", caption, columns, rows, _main_notes(scenes))


def _in_order(scenes: Sequence[Scene]) -> list[str]:
    found = {method for scene in scenes for method in scene.compared}
    rows = printed().methods
    return [*(method for method in rows if method in found), *sorted(found - set(rows))]


def _kind(method: str) -> int:
    """Bounds, methods of the paper's Table 1, others: parted by lines."""
    return 0 if method in BOUNDS else 1 if method in printed().methods else 2


def _marked_name(method: str, scenes: Sequence[Scene]) -> str:
    kept = any(keeps_images(entry) for scene in scenes for entry in scene.some([method]))
    return f"{method_name(method)}{' ‡' if kept else ''}"


def _block(scene: Scene, methods: Sequence[str]) -> tuple[list[Column], list[list[Cell]]]:
    """One split's columns, and a list of cells for each method."""
    columns: list[Column] = []
    parts: list[list[Cell]] = []
    for letter, quantity in LETTERS.items():
        ranks = _ranks(scene, quantity)
        columns.append(Column(f"{letter} ({quantity.unit})", scene.title))
        parts.append([_ours(scene, method, quantity, ranks.get(method, 0)) for method in methods])
        if scene.column:
            columns.append(Column(f"paper’s {letter}", scene.title))
            parts.append([_printed(scene.column, method, letter) for method in methods])
    columns.append(Column("seeds", scene.title))
    parts.append([_seeds(scene, method) for method in methods])
    return columns, [list(cells) for cells in zip(*parts, strict=True)]


def _ours(scene: Scene, method: str, quantity: Quantity, rank: int) -> Cell:
    entry = scene.entries.get(method)
    return EMPTY if entry is None else spread_cell(percent_spread(entry, quantity), rank=rank)


def _printed(column: str, method: str, letter: str) -> Cell:
    result = printed().table1[column].get(method)
    if result is None:
        return EMPTY
    cell = number_cell(getattr(result, letter), deviation=getattr(result, f"{letter}_std"))
    return replace(cell, text=f"{cell.text} †") if printed().misprint(column, method, letter) else cell


def _seeds(scene: Scene, method: str) -> Cell:
    entry = scene.entries.get(method)
    return EMPTY if entry is None else number_cell(len(entry.runs), 0)


def _ranks(scene: Scene, quantity: Quantity) -> dict[str, int]:
    """The best and the second of those that compete. What is written alike is equally good."""
    written = {m: float(fixed(percent_spread(scene.entries[m], quantity).mean, 2)) for m in scene.competing}
    order = sorted(set(written.values()), reverse=quantity.best == "highest")
    if len(written) < 2:
        return {}
    best = zip((BEST, SECOND), order, strict=False)
    return {method: rank for rank, value in best for method in written if written[method] == value}


def _main_notes(scenes: Sequence[Scene]) -> list[str]:
    notes = [f"{DEFINED} Bold is the best, underlined the second; Joint and Fine are bounds and do not compete."]
    if any(is_embedded(method) for scene in scenes for method in scene.compared):
        notes.append("Shaded: eXX is XX with embedding distillation.")
    if any(keeps_images(entry) for scene in scenes for entry in scene.some(scene.compared)):
        notes.append("‡ keeps exemplars: images of earlier classes.")
    notes += [_stands_for(scene) for scene in scenes if scene.column]
    wrong = (m for m in printed().misprints if any(m.column == s.column and m.method in s.entries for s in scenes))
    notes += [f"† As the paper prints it for {method_name(m.method)}: it {m.note}." for m in wrong]
    return [*notes, *remarks(scenes)]


def _stands_for(scene: Scene) -> str:
    column = scene.column or ""
    if column == column_of(scene.metrics.data, scene.metrics.split):
        return f"{scene.title} has the data and split of the paper’s column {column}."
    data, _, tasks = column.rpartition("-")
    return (
        f"{scene.title} stands for the paper’s {tasks} tasks on {data}, a larger problem: orders can be set against "
        "each other, values cannot."
    )


def remarks(scenes: Sequence[Scene]) -> list[str]:
    """What runs say must be said with their results."""
    said = (
        f"{entry.name}, {name}: {remark}."
        for scene in scenes
        for entry in scene.some(scene.compared)
        for run in entry.runs
        for name, remark in run.metrics.remarks.items()
    )
    return list(dict.fromkeys(said))


@dataclass(frozen=True)
class Ranking:
    """Our A and the paper's of the same methods, without the bounds."""

    scene: Scene
    column: str
    entries: list[Entry]

    @property
    def theirs(self) -> list[float]:
        """The paper's A."""
        return [printed().table1[self.column][entry.method].A for entry in self.entries]

    @property
    def ours(self) -> list[float]:
        """Our mean A."""
        return [percent_spread(entry).mean for entry in self.entries]

    @property
    def agreement(self) -> Agreement:
        """How far the two orders agree."""
        return agreement([list(percents(entry).values()) for entry in self.entries], self.theirs)


def ranking(scene: Scene) -> Ranking | None:
    """If the split stands for a column of the paper, and has three methods of it or more."""
    entries = [entry for entry in scene.some(scene.competing) if entry.method in printed().methods]
    return Ranking(scene, scene.column, entries) if scene.column and len(entries) > 2 else None


def agreement_table(rankings: Sequence[Ranking]) -> Table:
    """Kendall's tau-b, a row a split."""
    columns = [Column("split", number=False), Column("paper’s column", number=False)]
    columns += [Column(name) for name in ("methods", "tau-b", "95 % from", "to")]
    rows = []
    for one in rankings:
        found = one.agreement
        low, high = found.interval or (None, None)
        cells = [Cell(one.scene.title), Cell(one.column), number_cell(found.methods, 0), number_cell(found.tau)]
        rows.append(Row([*cells, number_cell(low), number_cell(high)]))
    note = (
        "Kendall’s tau-b of A between our means and the paper’s, Fine and Joint left out: 1 is the same order, 0 no "
        "relation, −1 the reverse. The interval comes from 2000 resamples of the seeds within each method."
    )
    return Table("agreement", "Agreement of our order with the paper’s", columns, rows, [note])


def paired_table(scene: Scene) -> Table | None:
    """eTag minus each other method or variant, over the seeds that both have."""
    if OURS not in scene.entries:
        return None
    ours = percents(scene.entries[OURS])
    others = [scene.entries[label] for label in scene.labels if label != OURS]
    found = [(entry, difference) for entry in others if (difference := paired(ours, percents(entry)))]
    rows = []
    for entry, one in found:
        mean, margin = one.difference.mean, one.margin
        cells = [Cell(entry.name), replace(spread_cell(one.difference), text=_signed(one.difference.text(_two)))]
        cells += [EMPTY, EMPTY] if margin is None else [number_cell(mean - margin), number_cell(mean + margin)]
        rows.append(Row([*cells, Cell(", ".join(map(str, one.seeds)))], shaded=is_embedded(entry.method)))
    columns = [METHOD, *(Column(name) for name in ("eTag’s A minus its (points)", "95 % from", "to", "seeds"))]
    note = (
        "Differences of A_weighted seed by seed, with their standard deviation and Student’s interval of their mean."
    )
    return Table(f"paired-{scene.slug}", scene.title, columns, rows, [note]) if rows else None


def _two(value: float) -> str:
    return fixed(value, 2)


def _signed(text: str) -> str:
    return text if text.startswith("-") else f"+{text}"
