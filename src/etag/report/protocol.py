"""How the methods of a comparison were trained: what all have in common, what some need beyond it, and how the settings
of each were chosen. Configurations are read leniently: those of older runs have other options."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from etag.core.options import TrainOptions
from etag.report.agreement import Spread
from etag.report.groups import MethodRuns, RunGroup
from etag.report.records import RunRecord
from etag.report.results import CellsOf, member_table
from etag.report.tables import BEST, EMPTY, Cell, Column, Row, Table, number_cell, spread_cell

SMALL = ("epochs", "steps", "lr")  # what options of a training have, wherever they are


def training_table(group: RunGroup) -> Table | None:
    """How long every method was trained, on how much, and what it needs beyond that; None if no run says it."""
    configs = [member.runs[0].options for member in group.all]
    if not any("train" in config for config in configs):
        return None
    first, later = ([_training(config, index) for config in configs] for index in (0, 1))
    columns: list[CellsOf] = [
        (Column("base task", "length"), [_length(training) for training in first]),
        (Column("later tasks", "length"), [_length(training) for training in later]),
        (Column("base task", "learning rate"), [_rate(training) for training in first]),
        (Column("later tasks", "learning rate"), [_rate(training) for training in later]),
        (Column("images per class"), [_cell(_at(config, "data", "train_per_class") or "all") for config in configs]),
        (Column("batch"), [_cell(training and training.batch_size) for training in first]),
        (
            Column("beyond that", is_numeric=False, title="what else the method trains or stores"),
            [_cell("; ".join(_beyond(config, member))) for config, member in zip(configs, group.all, strict=True)],
        ),
        (
            Column("train (s)"),
            [spread_cell(Spread.of([sum(run.metrics.train_seconds) for run in m.runs]), 0) for m in group.all],
        ),
    ]
    return member_table("training", group, group.all, columns, [_orders(group), *_precision(group)])


def search_table(folder: Path, runs: Sequence[RunRecord]) -> Table | None:
    """Which values were tried for each method, and which were chosen; None without a search."""
    by_method: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        by_method.setdefault((run.metrics.split, run.metrics.method), []).append(run)
    rows = []
    for (split, method), tried in by_method.items():
        best, *others = sorted(tried, key=lambda run: run.metrics.values["A_weighted"], reverse=True)
        cells = [_cell(method), _cell(split), _cell(_tried(best)), _accuracy(best, BEST)]
        told = "; ".join(f"{_tried(run)}: {_accuracy(run).text}" for run in others)
        rows.append(Row([*cells, number_cell(len(tried), 0), _cell(told)]))
    if not rows:
        return None
    heads = [Column("method", is_numeric=False), Column("split of the base classes", is_numeric=False)]
    heads += [Column("chosen", is_numeric=False), Column("A (%)"), Column("trials"), Column("others", is_numeric=False)]
    note = (
        "Tried on the classes of the base task alone and evaluated on images held out of their training data: neither "
        "test images nor later classes had an influence. Chosen is the best of the trials that are finished. What is "
        "not in this table is as the grid sets it."
    )
    return Table("search", folder.resolve().name, heads, rows, [note])


def _at(values: Any, *path: str) -> Any:
    """The value at a path of keys; None where there is none."""
    for key in path:
        values = values.get(key) if isinstance(values, dict) else None
    return values


def _cell(value: Any) -> Cell:
    return Cell(str(value)) if value else EMPTY


def _accuracy(run: RunRecord, rank: int = 0) -> Cell:
    return number_cell(100 * run.metrics.values["A_weighted"], rank=rank)


def _tried(run: RunRecord) -> str:
    """The values of a trial, from the name of its directory."""
    return run.path.resolve().name.removeprefix(f"{run.metrics.method}-").rpartition("-seed")[0]


def _training(config: dict[str, Any], index: int) -> TrainOptions | None:
    try:
        return TrainOptions.model_validate(config.get("train")).for_task(index)
    except ValidationError:
        return None


def _length(training: TrainOptions | None) -> Cell:
    if training is None:
        return EMPTY
    return Cell(f"{training.steps} steps" if training.steps else f"{training.epochs} epochs")


def _rate(training: TrainOptions | None) -> Cell:
    return EMPTY if training is None else Cell(f"{training.lr:g}", training.lr)


def _beyond(config: dict[str, Any], member: MethodRuns) -> Iterator[str]:
    """What the method trains besides the solver, and what it stores of images."""
    embedding = _at(config, "method", "embedding")
    if isinstance(embedding, dict) and "auxiliaries" in member.runs[0].metrics.parameters_by_part:
        views, share = embedding.get("views_per_image"), embedding.get("image_share", 1)
        seen = "all views" if views is None else f"{views} view{'s' if views > 1 else ''}"
        yield f"auxiliaries on {seen} of {'every image' if share == 1 else f'{share:.0%} of the images'}"
    for path, training in _trainings(config.get("method"), ()):
        length = f"{training['steps']} steps" if training["steps"] else f"{training['epochs']} epochs"
        yield f"{' '.join(path).removesuffix(' train')}: {length}".replace("_", " ")
    if member.stores_images:
        per_class, total = (_at(config, "method", "exemplars", key) for key in ("per_class", "total"))
        yield f"exemplars: {f'{total} in all' if total else f'{per_class} per class'}"


def _trainings(values: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """The options of every training in a method's options, with the keys that lead to them."""
    if not isinstance(values, dict):
        return
    if all(key in values for key in SMALL):
        yield path, values
        return
    for key, value in values.items():
        yield from _trainings(value, (*path, key))


def _orders(group: RunGroup) -> str:
    """Whether seeds differ in the order of the classes, which makes more of a difference than anything else random."""
    runs = [run for member in group.all for run in member.runs]
    orders = {tuple(run.metrics.class_names[: run.metrics.classes]) for run in runs}
    seeds = {run.metrics.seed for run in runs}
    if len(seeds) == 1:
        return "One seed, so one order of classes: nothing is known of how much the order changes."
    if len(orders) == 1:
        return (
            f"All {len(seeds)} seeds share one order of classes: the deviation does not contain that of other orders."
        )
    return f"{len(orders)} orders of classes with {len(seeds)} seeds: a seed sets the order, and all that is random."


def _precision(group: RunGroup) -> Iterator[str]:
    found = sorted({run.metrics.precision for member in group.all for run in member.runs})
    yield f"Precision: {', '.join(found)}."
