"""The paper's smaller tables with our runs: components, self-supervised tasks, temperature; and time and size."""

import re
from collections.abc import Callable, Sequence

from etag.core.text import data_size, short_count
from etag.experiments import yaml
from etag.experiments.paper import printed
from etag.report.groups import MethodRuns, RunGroup
from etag.report.layout import layout
from etag.report.quantities import Spread
from etag.report.records import Metrics
from etag.report.results import METHOD, seeds_columns
from etag.report.style import is_embedded
from etag.report.tables import EMPTY, Cell, Column, Row, Table, number_cell, spread_cell

A, PAPER_A = Column("A (%)"), Column("paper’s A")
EQUAL_TASKS = "The paper’s values are of CIFAR-100 in 4 equal tasks."


def ablation_table(group: RunGroup) -> Table | None:
    """The paper's Table 2: the components of each baseline and its accuracy."""
    components = printed().ablation
    if not group.some(layout().ablations) or layout().main not in group.members:
        return None
    members = group.some(components)
    rows = []
    for member in members:
        one = components[member.method]
        parts = [one.GE, one.KD, *("yes" if part else "no" for part in (one.SS, one.DB))]
        rows.append([*map(Cell, parts), spread_cell(member.percent_spread()), number_cell(one.A)])
    columns = [*(Column(part, number=False) for part in ("GE", "KD", "SS", "DB")), A, PAPER_A]
    note = (
        "GE, what is generated: samples (S), naive (N) or task-oriented (T) features. KD, distillation: naive (N) or "
        f"of embeddings (E). SS: a self-supervised task. DB: a buffer of old images. {EQUAL_TASKS}"
    )
    return _table("ablation", group, [m.title for m in members], members, columns, rows, note)


def self_supervised_table(group: RunGroup) -> Table | None:
    """The paper's Table 3."""
    tasks = {key: task for key, task in layout().self_supervised.items() if task.run in group.members}
    if not any(group.members[task.run].is_variant for task in tasks.values()):
        return None
    members = [group.members[task.run] for task in tasks.values()]
    theirs = [number_cell(printed().self_supervised[key]) for key in tasks]
    rows = [[spread_cell(member.percent_spread()), cell] for member, cell in zip(members, theirs, strict=True)]
    titles = [task.title for task in tasks.values()]
    first = Column("self-supervised task", number=False)
    return _table("self-supervised", group, titles, members, [A, PAPER_A], rows, EQUAL_TASKS, first)


def generative_table(group: RunGroup) -> Table | None:
    """The paper's comparison of generative methods."""
    theirs = printed().generative
    members = group.some(theirs)
    if len(members) < 3:
        return None
    rows = [
        [spread_cell(m.percent_spread()), number_cell(theirs[m.method].A, deviation=theirs[m.method].A_std)]
        for m in members
    ]
    note = "The paper’s values are of CIFAR-100 in 10 equal tasks."
    return _table("generative", group, [m.title for m in members], members, [A, PAPER_A], rows, note)


def _table(
    name: str,
    group: RunGroup,
    titles: Sequence[str],
    members: Sequence[MethodRuns],
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    note: str,
    first: Column = METHOD,
) -> Table:
    """A table with one row per member, and a column of seeds if their numbers differ."""
    seeds = seeds_columns(members)
    lines = [
        Row([Cell(title), *cells, *(column[place] for _, column in seeds)])
        for place, (title, cells) in enumerate(zip(titles, rows, strict=True))
    ]
    heads = [first, *columns, *(column for column, _ in seeds)]
    return Table(f"{name}-{group.slug}", group.title, heads, lines, [note])


def by_temperature(group: RunGroup) -> dict[float, MethodRuns]:
    """Runs of the paper's method by temperature, rising: its variants, and the method itself with its own value."""
    shape = layout().temperature
    pattern = re.compile(rf"{re.escape(shape.method)}-{re.escape(shape.variant)}(\d+(?:\.\d+)?)")
    found = {float(m[1]): member for label, member in group.members.items() if (m := pattern.fullmatch(label))}
    own = _own_temperature(group)
    if found and own is not None:
        found.setdefault(own, group.members[shape.method])
    return dict(sorted(found.items()))


def _own_temperature(group: RunGroup) -> float | None:
    shape = layout().temperature
    if shape.method not in group.members:
        return None
    run = group.members[shape.method].runs[0]
    value = yaml.parse(run.config, str(run.path / "config.yaml"))
    for key in shape.option.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return float(value) if isinstance(value, int | float) else None


def time_table(group: RunGroup, reference: MethodRuns | None) -> Table:
    """Seconds to train and to test; as a share of the reference's; beside the paper's if it has these methods."""
    members = list(group.members.values())
    times = printed().time
    beside = len(times.keys() & group.members.keys()) > 1
    whole = _total(reference) if reference else None
    rows = []
    for member in members:
        cells = [
            spread_cell(_over(member, lambda m: sum(m.train_seconds)), 1),
            spread_cell(_over(member, lambda m: sum(m.test_seconds)), 1),
            _per_image(member),
            *([number_cell(_total(member) / whole)] if whole else []),
            *(_printed_times(member.label) if beside else []),
        ]
        rows.append(cells)
    share = f"share of {reference.title}’s" if whole and reference else ""
    heads = ["train (s)", "test (s)", "per test image (ms)", *([share] if share else [])]
    columns = [Column(name, "ours" if beside else "") for name in heads]
    columns += [Column(name, "the paper’s") for name in ("train (s)", "test (s)") if beside]
    note = "All tasks together, mean ± standard deviation over seeds. A share is of training and test together."
    note += f" {EQUAL_TASKS}" if beside else ""
    return _shaded(_table("time", group, [m.title for m in members], members, columns, rows, note), members)


def _shaded(table: Table, members: Sequence[MethodRuns]) -> Table:
    rows = [Row(row.cells, is_embedded(member.method)) for row, member in zip(table.rows, members, strict=True)]
    return Table(table.name, table.caption, table.columns, rows, table.notes)


def _printed_times(label: str) -> list[Cell]:
    seconds = printed().time.get(label)
    return [EMPTY] * 2 if seconds is None else [number_cell(seconds.train), number_cell(seconds.test)]


def _over(member: MethodRuns, read: Callable[[Metrics], float]) -> Spread:
    return Spread.of([read(run.metrics) for run in member.runs])


def _total(member: MethodRuns) -> float:
    return _over(member, lambda m: sum(m.train_seconds) + sum(m.test_seconds)).mean


def _per_image(member: MethodRuns) -> Cell:
    if any(tested_images(run.metrics) is None for run in member.runs):
        return EMPTY
    return spread_cell(_over(member, lambda m: 1000 * sum(m.test_seconds) / (tested_images(m) or 1)), 3)


def tested_images(metrics: Metrics) -> int | None:
    """Number of images in the tests after all tasks together; None if a task has no new class."""
    if 0 in metrics.classes_per_task:
        return None
    images = [sum(row) for row in metrics.confusion]
    return sum(sum(images[:seen]) for seen in metrics.seen) or None


def size_table(group: RunGroup) -> Table:
    """Parameters, and bytes stored from task to task, by part."""
    members = list(group.members.values())
    columns, parts = [], []
    for heading, read, write in (("parameters", _parameters, short_count), ("stored", _stored, data_size)):
        for part in ["all", *dict.fromkeys(part for member in members for part in read(_last(member)))]:
            columns.append(Column(part, heading))
            parts.append([_size(read(_last(member)), part, write) for member in members])
    lines = zip(members, zip(*parts, strict=True), strict=True)
    rows = [Row([Cell(member.title), *cells], is_embedded(member.method)) for member, cells in lines]
    note = "At the end of a run. Stored: from one task to the next."
    return Table(f"size-{group.slug}", group.title, [METHOD, *columns], rows, [note])


def _last(member: MethodRuns) -> Metrics:
    return member.runs[-1].metrics


def _parameters(metrics: Metrics) -> dict[str, int]:
    return metrics.parameters_by_part


def _stored(metrics: Metrics) -> dict[str, int]:
    return metrics.stored_bytes_by_part


def _size(by_part: dict[str, int], part: str, write: Callable[[float], str]) -> Cell:
    count = sum(by_part.values()) if part == "all" else by_part.get(part)
    return EMPTY if count is None else Cell(write(count), count)
