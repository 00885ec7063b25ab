"""The paper's smaller tables with our runs: components, self-supervised tasks, temperature; and time and size."""

import re
from collections.abc import Callable, Sequence

from etag.core.text import data_size, short_count
from etag.experiments import yaml_files
from etag.experiments.paper import published
from etag.report.agreement import Spread
from etag.report.groups import MethodRuns, RunGroup
from etag.report.layout import layout
from etag.report.records import Metrics
from etag.report.results import CellsOf, member_table, seeds_columns
from etag.report.tables import EMPTY, Cell, Column, Table, number_cell, spread_cell

EQUAL_TASKS = "The paper’s values are of CIFAR-100 in 4 equal tasks."


def ablation_table(group: RunGroup) -> Table | None:
    """The paper's Table 2: the components of each baseline and its accuracy."""
    if not group.some(layout().ablations) or layout().main not in group.members:
        return None
    members = group.some(published().ablation)
    rows = [published().ablation[member.method] for member in members]
    columns: list[CellsOf] = [
        (Column("GE", is_numeric=False), [Cell(one.GE) for one in rows]),
        (Column("KD", is_numeric=False), [Cell(one.KD) for one in rows]),
        (Column("SS", is_numeric=False), [Cell("yes" if one.SS else "no") for one in rows]),
        (Column("DB", is_numeric=False), [Cell("yes" if one.DB else "no") for one in rows]),
        *_beside_the_paper(members, [number_cell(one.A) for one in rows]),
    ]
    note = (
        "GE, what is generated: samples (S), naive (N) or task-oriented (T) features. KD, distillation: naive (N) or "
        f"of embeddings (E). SS: a self-supervised task. DB: a buffer of old images. {EQUAL_TASKS}"
    )
    return member_table("ablation", group, members, columns, [note])


def self_supervised_table(group: RunGroup) -> Table | None:
    """The paper's Table 3."""
    tasks = [task for task in layout().self_supervised if task[-1] in group.members]
    members = [group.members[run] for _, _, run in tasks]
    if not any(member.is_variant for member in members):
        return None
    columns = _beside_the_paper(members, [number_cell(published().self_supervised[key]) for key, _, _ in tasks])
    titles = [title for _, title, _ in tasks]
    return member_table("self-supervised", group, members, columns, [EQUAL_TASKS], "self-supervised task", titles)


def generative_table(group: RunGroup) -> Table | None:
    """The paper's comparison of generative methods."""
    members = group.some(published().generative)
    if len(members) < 3:
        return None
    rows = [published().generative[member.method] for member in members]
    columns = _beside_the_paper(members, [number_cell(one.A, deviation=one.A_std) for one in rows])
    note = "The paper’s values are of CIFAR-100 in 10 equal tasks."
    return member_table("generative", group, members, columns, [note])


def _beside_the_paper(members: Sequence[MethodRuns], theirs: Sequence[Cell]) -> list[CellsOf]:
    """Our A and the paper's, and a column of seeds if their numbers differ."""
    ours = [spread_cell(member.spread()) for member in members]
    return [(Column("A (%)"), ours), (Column("paper’s A"), theirs), *seeds_columns(members)]


def by_temperature(group: RunGroup) -> dict[float, MethodRuns]:
    """Runs of the paper's method by temperature, rising: its variants, and the method itself with its own value."""
    pattern = re.compile(rf"{re.escape(layout().temperature_runs)}(\d+(?:\.\d+)?)")
    by_tau = {float(m[1]): member for label, member in group.members.items() if (m := pattern.fullmatch(label))}
    for main in group.some([layout().main]) if by_tau else []:
        value = yaml_files.parse(main.runs[0].config, str(main.runs[0].path / "config.yaml"))
        for key in layout().temperature_option.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, int | float):
            by_tau.setdefault(float(value), main)
    return dict(sorted(by_tau.items()))


def time_table(group: RunGroup, reference: MethodRuns | None) -> Table:
    """Seconds to train and to test; as a share of the reference's; beside the paper's if it has these methods."""
    times = published().time
    beside = len(times.keys() & group.members.keys()) > 1
    ours = {
        "train (s)": [spread_cell(_over(m, lambda run: sum(run.train_seconds)), 1) for m in group.all],
        "test (s)": [spread_cell(_over(m, lambda run: sum(run.test_seconds)), 1) for m in group.all],
        "per test image (ms)": [_per_image(member) for member in group.all],
    }
    if reference and (whole := _total(reference)):
        ours[f"share of {reference.title}’s"] = [number_cell(_total(member) / whole) for member in group.all]
    columns = [(Column(name, "ours" if beside else ""), cells) for name, cells in ours.items()]
    note = "All tasks together, mean ± standard deviation over seeds. A share is of training and test together."
    if beside:
        theirs = [times.get(label) for label in group.members]
        columns.append((Column("train (s)", "the paper’s"), [number_cell(t.train if t else None) for t in theirs]))
        columns.append((Column("test (s)", "the paper’s"), [number_cell(t.test if t else None) for t in theirs]))
        note += f" {EQUAL_TASKS}"
    return member_table("time", group, group.all, [*columns, *seeds_columns(group.all)], [note])


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
    last = [member.runs[-1].metrics for member in group.all]
    columns = [
        *_size_columns("parameters", [metrics.parameters_by_part for metrics in last], short_count),
        *_size_columns("stored", [metrics.stored_bytes_by_part for metrics in last], data_size),
    ]
    note = "At the end of a run. Stored: from one task to the next."
    return member_table("size", group, group.all, columns, [note])


def _size_columns(heading: str, sizes: Sequence[dict[str, int]], write: Callable[[float], str]) -> list[CellsOf]:
    """One column per part under a shared heading; the first is of all parts together."""
    sizes = [{"all": sum(by_part.values())} | by_part for by_part in sizes]
    return [
        (Column(part, heading), [Cell(write(own[part]), own[part]) if part in own else EMPTY for own in sizes])
        for part in dict.fromkeys(part for by_part in sizes for part in by_part)
    ]
