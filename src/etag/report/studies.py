"""What a collection says of eTag's parts and of costs: ablation, self-supervised tasks, temperature, time, size."""

import re
from collections.abc import Callable, Sequence

from etag.experiments import yaml
from etag.experiments.paper import printed
from etag.report.collection import BASELINES, OURS, Scene, percent_spread
from etag.report.comparison import Entry
from etag.report.formats import data_size, short_count
from etag.report.quantities import Spread
from etag.report.records import Metrics
from etag.report.results import METHOD
from etag.report.style import is_embedded
from etag.report.tables import EMPTY, Cell, Column, Row, Table, number_cell, spread_cell

TAU = re.compile(rf"{OURS}-tau(\d+(?:\.\d+)?)")
SELF_SUPERVISED = {  # by the paper's columns: what we call the run
    "none": ("none", "b0"),
    "jigsaw": ("jigsaw puzzles", f"{OURS}-jigsaw"),
    "color": ("permutation of color channels", f"{OURS}-color"),
    "rotation": ("rotations", OURS),
}
COMPONENTS = ("b1", "b2", "b3", OURS)
A, PAPER_A = Column("A (%)"), Column("paper’s A")
EQUAL_TASKS = "The paper’s values are of CIFAR-100 in 4 equal tasks."


def ablation_table(scene: Scene) -> Table | None:
    """The paper's Table 2: what each baseline is made of, and what it reaches."""
    made = printed().ablation
    if not any(method in scene.entries for method in BASELINES) or OURS not in scene.entries:
        return None
    rows = []
    for method in [name for name in made if name in scene.entries]:
        one, entry = made[method], scene.entries[method]
        parts = [one.GE, one.KD, *("yes" if part else "no" for part in (one.SS, one.DB))]
        cells = [Cell(entry.name), *map(Cell, parts), spread_cell(percent_spread(entry)), number_cell(one.A)]
        rows.append(Row(cells))
    columns = [METHOD, *(Column(part, number=False) for part in ("GE", "KD", "SS", "DB")), A, PAPER_A]
    note = (
        "GE, what is generated: samples (S), naive (N) or task-oriented (T) features. KD, distillation: naive (N) or "
        f"of embeddings (E). SS: a self-supervised task. DB: a buffer of old images. {EQUAL_TASKS}"
    )
    return Table(f"ablation-{scene.slug}", scene.title, columns, rows, [note])


def self_supervised_table(scene: Scene) -> Table | None:
    """The paper's Table 3."""
    found = {key: scene.entries[label] for key, (_, label) in SELF_SUPERVISED.items() if label in scene.entries}
    if not found.keys() & {"jigsaw", "color"}:
        return None
    rows = [_versus(SELF_SUPERVISED[key][0], entry, printed().self_supervised[key]) for key, entry in found.items()]
    columns = [Column("self-supervised task", number=False), A, PAPER_A]
    return Table(f"self-supervised-{scene.slug}", scene.title, columns, rows, [EQUAL_TASKS])


def generative_table(scene: Scene) -> Table | None:
    """The paper's comparison of generative methods."""
    theirs = printed().generative
    found = [scene.entries[method] for method in theirs if method in scene.entries]
    if len(found) < 3:
        return None
    rows = [_versus(e.name, e, theirs[e.method].A, theirs[e.method].A_std) for e in found]
    note = "The paper’s values are of CIFAR-100 in 10 equal tasks."
    return Table(f"generative-{scene.slug}", scene.title, [METHOD, A, PAPER_A], rows, [note])


def _versus(name: str, entry: Entry, theirs: float, deviation: float | None = None) -> Row:
    return Row([Cell(name), spread_cell(percent_spread(entry)), number_cell(theirs, deviation=deviation)])


def by_temperature(scene: Scene) -> dict[float, Entry]:
    """eTag by tau, rising: its variants, and eTag itself where its own tau is not among theirs."""
    found = {float(m[1]): entry for label, entry in scene.entries.items() if (m := TAU.fullmatch(label))}
    own = _own_tau(scene)
    if found and own is not None:
        found.setdefault(own, scene.entries[OURS])
    return dict(sorted(found.items()))


def _own_tau(scene: Scene) -> float | None:
    if OURS not in scene.entries:
        return None
    run = scene.entries[OURS].runs[0]
    value = yaml.parse(run.config, str(run.path / "config.yaml"))
    for key in ("method", "embedding", "tau"):
        value = value.get(key) if isinstance(value, dict) else None
    return None if value is None else float(value)


def time_table(scene: Scene) -> Table:
    """Seconds to train and to test; the paper's too, where it has other methods than eTag."""
    beside = len(printed().time.keys() & scene.entries.keys()) > 1
    ours = _total(scene.entries[OURS]) if OURS in scene.entries else None
    rows = []
    for label in scene.labels:
        entry = scene.entries[label]
        cells = [
            Cell(entry.name),
            spread_cell(_over(entry, lambda m: sum(m.train_seconds)), 1),
            spread_cell(_over(entry, lambda m: sum(m.test_seconds)), 1),
            _per_image(entry),
            number_cell(_total(entry) / ours if ours else None),
            *(_printed_times(label) if beside else []),
        ]
        rows.append(Row(cells, shaded=is_embedded(entry.method)))
    ours_heads = ("train (s)", "test (s)", "a test image (ms)", "of eTag’s")
    columns = [METHOD, *(Column(name, "ours") for name in ours_heads)]
    columns += [Column(name, "the paper’s") for name in ("train (s)", "test (s)", "of eTag’s") if beside]
    note = "All tasks together, mean ± standard deviation over seeds. “Of eTag’s”: train and test together."
    return Table(f"time-{scene.slug}", scene.title, columns, rows, [note, *([EQUAL_TASKS] if beside else [])])


def _printed_times(label: str) -> list[Cell]:
    seconds, etag = printed().time.get(label), printed().time[OURS]
    if seconds is None:
        return [EMPTY] * 3
    share = (seconds.train + seconds.test) / (etag.train + etag.test)
    return [number_cell(seconds.train), number_cell(seconds.test), number_cell(share)]


def _over(entry: Entry, read: Callable[[Metrics], float]) -> Spread:
    return Spread.of([read(run.metrics) for run in entry.runs])


def _total(entry: Entry) -> float:
    return _over(entry, lambda m: sum(m.train_seconds) + sum(m.test_seconds)).mean


def _per_image(entry: Entry) -> Cell:
    if any(tested_images(run.metrics) is None for run in entry.runs):
        return EMPTY
    return spread_cell(_over(entry, lambda m: 1000 * sum(m.test_seconds) / (tested_images(m) or 1)), 3)


def tested_images(metrics: Metrics) -> int | None:
    """Images looked at in the tests after all tasks; unknown where a task brings no new class."""
    if 0 in metrics.classes_per_task:
        return None
    images = [sum(row) for row in metrics.confusion]
    return sum(sum(images[:seen]) for seen in metrics.seen) or None


def size_table(scene: Scene) -> Table:
    """Parameters, and bytes that are kept from task to task, by part."""
    entries = scene.some(scene.labels)
    columns, parts = [METHOD], [[Cell(entry.name) for entry in entries]]
    for group, read, write in (("parameters", _parameters, short_count), ("stored", _stored, data_size)):
        for part in ["all", *dict.fromkeys(part for entry in entries for part in read(_last(entry)))]:
            columns.append(Column(part, group))
            parts.append([_size(read(_last(entry)), part, write) for entry in entries])
    lines = zip(entries, zip(*parts, strict=True), strict=True)
    rows = [Row(cells, shaded=is_embedded(entry.method)) for entry, cells in lines]
    return Table(
        f"size-{scene.slug}",
        scene.title,
        columns,
        rows,
        ["At the end of a run. Stored: kept from one task to the next."],
    )


def _last(entry: Entry) -> Metrics:
    return entry.runs[-1].metrics


def _parameters(metrics: Metrics) -> dict[str, int]:
    return metrics.parameters_by_part


def _stored(metrics: Metrics) -> dict[str, int]:
    return metrics.stored_bytes_by_part


def _size(by_part: dict[str, int], part: str, write: Callable[[float], str]) -> Cell:
    count = sum(by_part.values()) if part == "all" else by_part.get(part)
    return EMPTY if count is None else Cell(write(count), count)


def tables(scenes: Sequence[Scene], make: Callable[[Scene], Table | None]) -> list[Table]:
    """One for each split that has the runs for it."""
    return [table for scene in scenes if (table := make(scene))]
