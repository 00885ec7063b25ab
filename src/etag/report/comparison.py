"""Several runs side by side: which belong together, how far apart they are, which is best."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from etag.core.errors import EtagError
from etag.report.figures import Bar, Curve
from etag.report.formats import percent
from etag.report.quantities import A_WEIGHTED, ACCURACY_METRICS, COSTS, Quantity, Spread
from etag.report.records import RunRecord
from etag.report.style import Look, method_name

LOWER_BOUND, UPPER_BOUND = "fine", "joint"
COLUMNS = (*ACCURACY_METRICS, *COSTS)


@dataclass(frozen=True)
class Entry:
    """One method on the page: its runs, which differ in the seed only."""

    name: str
    method: str
    runs: tuple[RunRecord, ...]

    @property
    def seeds(self) -> list[int]:
        """The seeds, rising."""
        return [run.metrics.seed for run in self.runs]

    def values(self, quantity: Quantity) -> list[float]:
        """One number a run."""
        return [quantity.read(run.metrics) for run in self.runs]

    def spread(self, quantity: Quantity) -> Spread:
        """A number over the seeds."""
        return Spread.of(self.values(quantity))

    def curve(self, look: Look) -> Curve:
        """Weighted accuracy after each task, over the seeds."""
        steps = [
            Spread.of(values) for values in zip(*(r.metrics.step_accuracy_weighted for r in self.runs), strict=True)
        ]
        deviations = [step.deviation or 0.0 for step in steps] if len(self.runs) > 1 else None
        return Curve(self.name, [step.mean for step in steps], look, deviations)

    def bar(self, look: Look) -> Bar:
        """Training time of each task, mean over the seeds."""
        tasks = zip(*(run.metrics.train_seconds for run in self.runs), strict=True)
        return Bar(self.name, [Spread.of(seconds).mean for seconds in tasks], look)


@dataclass(frozen=True)
class Cell:
    """A number of the table, and whether it is the best of its column."""

    text: str
    best: bool


def group(records: Sequence[RunRecord], beside: Path) -> list[Entry]:
    """One entry a method, from the lowest A to the highest.

    Runs of one method with the same seed must differ in something else: then each is an entry of its own, named after
    its directory as seen from `beside`.
    """
    _check_comparable(records)
    by_method: dict[str, list[RunRecord]] = {}
    for record in records:
        by_method.setdefault(record.metrics.method, []).append(record)
    entries = [entry for method, runs in by_method.items() for entry in _entries(method, runs, beside)]
    return sorted(entries, key=lambda entry: entry.spread(A_WEIGHTED).mean)


def _check_comparable(records: Sequence[RunRecord]) -> None:
    if not records:
        raise EtagError("there is nothing to compare: give at least one run directory.")
    first = records[0]
    for other in records[1:]:
        if _where(other) != _where(first):
            raise EtagError(
                f"runs can be compared on the same data and split only: '{first.path}' is on {_where(first)}, "
                f"'{other.path}' on {_where(other)}."
            )


def _where(record: RunRecord) -> str:
    metrics = record.metrics
    return f"{metrics.data} {metrics.split} ({' + '.join(map(str, metrics.classes_per_task))} classes)"


def _entries(method: str, runs: Sequence[RunRecord], beside: Path) -> list[Entry]:
    name = method_name(method)
    if max(Counter(run.metrics.seed for run in runs).values()) == 1:
        return [Entry(name, method, tuple(sorted(runs, key=lambda run: run.metrics.seed)))]
    return [Entry(f"{name} ({relative(run.path, beside)})", method, (run,)) for run in runs]


def relative(path: Path, beside: Path) -> str:
    """The way from one directory to a file or directory, as in a link."""
    return Path(os.path.relpath(path, beside)).as_posix()


def shown(entries: Sequence[Entry]) -> list[tuple[str, RunRecord]]:
    """The run that stands for each entry in pictures, with its name: of the lowest seed that all have, if any."""
    shared = set.intersection(*(set(entry.seeds) for entry in entries))
    runs = [next((r for r in entry.runs if r.metrics.seed in shared), entry.runs[0]) for entry in entries]
    return [
        (entry.name if len(entry.runs) == 1 else f"{entry.name}, seed {run.metrics.seed}", run)
        for entry, run in zip(entries, runs, strict=True)
    ]


def headline(entries: Sequence[Entry]) -> list[str]:
    """What the comparison says, in A_weighted: a sentence a method, the best first."""
    references = [entry for entry in entries if entry.method in (LOWER_BOUND, UPPER_BOUND)]
    others = [entry for entry in reversed(entries) if entry not in references]
    if not references or len(entries) == 1:
        return [_best_sentence(entries)]
    if not others:
        others, references = references[:1], references[1:]
    return [f"{entry.name} is {distances(entry, references)}" for entry in others]


def _best_sentence(entries: Sequence[Entry]) -> str:
    *rest, best = entries
    reached = f"{best.name} reaches {best.spread(A_WEIGHTED).text(percent)} %"
    return f"{reached}, {distances(best, rest[-1:])}" if rest else reached


def distances(entry: Entry, references: Sequence[Entry]) -> str:
    """How far it is from some others, in A_weighted."""
    first, *later = (_distance(entry, reference) for reference in references)
    # the unit is said once: "59.0 points above Fine and 13.1 below Joint"
    *all_but_last, last = [first, *(phrase.replace(" points", "", 1) for phrase in later)]
    return f"{', '.join(all_but_last)} and {last}" if all_but_last else last


def _distance(entry: Entry, reference: Entry) -> str:
    difference = _difference(entry, reference)
    size = Spread(abs(difference.mean), difference.deviation).text(percent)
    return f"{size} points {'above' if difference.mean >= 0 else 'below'} {reference.name}"


def _difference(entry: Entry, reference: Entry) -> Spread:
    ours, theirs = entry.values(A_WEIGHTED), reference.values(A_WEIGHTED)
    if entry.seeds == reference.seeds:  # seed by seed, so that what a seed does to both cancels
        return Spread.of([a - b for a, b in zip(ours, theirs, strict=True)])
    return Spread(Spread.of(ours).mean - Spread.of(theirs).mean, None)


def setting(entries: Sequence[Entry]) -> str:
    """What the headline's numbers are of: metric, data, split, seeds."""
    metrics = entries[0].runs[0].metrics
    return f"{A_WEIGHTED.name}, {metrics.data}, {metrics.split}, {_seeds(entries)}"


def _seeds(entries: Sequence[Entry]) -> str:
    sets = {tuple(entry.seeds) for entry in entries}
    if len(sets) > 1:
        return "each method over its own seeds"
    (seeds,) = sets
    several = len(seeds) > 1
    return (
        f"seed{'s' if several else ''} {', '.join(map(str, seeds))}{', mean ± standard deviation' if several else ''}"
    )


def table(entries: Sequence[Entry]) -> list[list[Cell]]:
    """A row an entry, a column a quantity of `COLUMNS`. The upper bound has seen all data: it is never the best."""
    competing = [entry for entry in entries if entry.method != UPPER_BOUND]
    best = {quantity: _best(quantity, competing) for quantity in COLUMNS}
    return [
        [_cell(quantity, entry, best[quantity] if entry in competing else None) for quantity in COLUMNS]
        for entry in entries
    ]


def _cell(quantity: Quantity, entry: Entry, best: str | None) -> Cell:
    mean = _mean(quantity, entry)
    # the deviation of a cost would fill the table and say little
    text = mean if quantity in COSTS else entry.spread(quantity).text(quantity.write)
    return Cell(text, mean == best)


def _best(quantity: Quantity, entries: Sequence[Entry]) -> str | None:
    if quantity.best is None or len(entries) < 2:
        return None
    choose = max if quantity.best == "highest" else min
    return _mean(quantity, choose(entries, key=lambda entry: entry.spread(quantity).mean))


def _mean(quantity: Quantity, entry: Entry) -> str:
    """As it is written: what looks the same is equally good."""
    return quantity.write(entry.spread(quantity).mean)
