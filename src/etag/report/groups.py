"""Runs that can be compared: those of one method that differ in the seed only, and all on the same data and split."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from etag.core.errors import EtagError
from etag.experiments.paper import column_of, printed
from etag.report.figures import Bar, Curve
from etag.report.layout import layout
from etag.report.quantities import A, Quantity, Spread
from etag.report.records import Metrics, RunRecord
from etag.report.style import Style, method_title, uses_all_data

STORED_IMAGES = "exemplars"  # the part of what a run stores that holds images
MANY = 6  # methods: of more, only some are shown in detail


@dataclass(frozen=True)
class MethodRuns:
    """The runs of one method or variant, which differ in the seed only."""

    label: str  # METHOD or METHOD-VARIANT, unique in its group
    title: str
    method: str
    runs: tuple[RunRecord, ...]

    @property
    def seeds(self) -> list[int]:
        """The seeds, rising."""
        return [run.metrics.seed for run in self.runs]

    def values(self, quantity: Quantity) -> list[float]:
        """One number per run."""
        return [quantity.read(run.metrics) for run in self.runs]

    def spread(self, quantity: Quantity) -> Spread:
        """Mean and deviation of a number over the seeds."""
        return Spread.of(self.values(quantity))

    def percents(self, quantity: Quantity = A) -> dict[int, float]:
        """The values of a metric in percent, by seed."""
        return {seed: 100 * value for seed, value in zip(self.seeds, self.values(quantity), strict=True)}

    def percent_spread(self, quantity: Quantity = A) -> Spread:
        """Mean and deviation of a metric over the seeds, in percent."""
        return Spread.of(list(self.percents(quantity).values()))

    def curve(self, style: Style) -> Curve:
        """Weighted accuracy after each task, over the seeds."""
        steps = [
            Spread.of(values) for values in zip(*(r.metrics.step_accuracy_weighted for r in self.runs), strict=True)
        ]
        deviations = [step.deviation or 0.0 for step in steps] if len(self.runs) > 1 else None
        return Curve(self.title, [step.mean for step in steps], style, deviations)

    def bar(self, style: Style) -> Bar:
        """Training time of each task, mean over the seeds."""
        tasks = zip(*(run.metrics.train_seconds for run in self.runs), strict=True)
        return Bar(self.title, [Spread.of(seconds).mean for seconds in tasks], style)

    @property
    def is_variant(self) -> bool:
        """Whether its options differ from the method's plain run, as far as its directory's name says."""
        return self.label != self.method

    @property
    def is_bound(self) -> bool:
        """Whether it is a reference that does not compete for the best value."""
        return self.label in layout().bounds or uses_all_data(self.method)

    @property
    def stores_images(self) -> bool:
        """Whether it stores exemplars."""
        return any(STORED_IMAGES in run.metrics.stored_bytes_by_part for run in self.runs)


@dataclass(frozen=True)
class RunGroup:
    """Runs on the same data and split, by label. Methods come first, in the paper's order; then variants."""

    title: str
    members: dict[str, MethodRuns]
    stated_column: str | None = None  # of the paper's Table 1, where the grid's file says so

    @property
    def metrics(self) -> Metrics:
        """Those of any run: all have data, split and classes in common."""
        return next(iter(self.members.values())).runs[0].metrics

    @property
    def slug(self) -> str:
        """The title in names of files."""
        return re.sub(r"[^\w.-]+", "-", self.title).strip("-")

    @property
    def column(self) -> str | None:
        """The column of the paper's Table 1 that this group stands for."""
        return self.stated_column or column_of(self.metrics.data, self.metrics.split)

    @property
    def methods(self) -> list[MethodRuns]:
        """Members without a variant."""
        return [member for member in self.members.values() if not member.is_variant]

    @property
    def competing(self) -> list[MethodRuns]:
        """All members but bounds."""
        return [member for member in self.members.values() if not member.is_bound]

    def some(self, labels: Iterable[str]) -> list[MethodRuns]:
        """The members with these labels, as far as there are any."""
        return [self.members[label] for label in labels if label in self.members]

    @property
    def detailed(self) -> list[MethodRuns]:
        """The members whose matrices and features are shown: all, or where there are many those that the paper
        shows, or else those with the highest A."""
        members = list(self.members.values())
        if len(members) <= MANY:
            return members
        chosen = self.some(layout().detailed)
        return chosen if len(chosen) > 1 else best_first(members)[:4]

    def reference(self, name: str | None) -> MethodRuns | None:
        """The member that the others are compared with: the one named, by label or title, None if it is not there;
        without a name the paper's main method, or else the one with the highest A that competes."""
        members = list(self.members.values())
        if name is not None:
            return next((m for m in members if name in (m.label, m.title)), None)
        return self.members.get(layout().main) or best_first(self.competing or members)[0]


def best_first(members: Iterable[MethodRuns]) -> list[MethodRuns]:
    """From the highest mean A to the lowest."""
    return sorted(members, key=lambda member: member.spread(A).mean, reverse=True)


def check_reference(groups: Sequence[RunGroup], name: str | None) -> None:
    """Raise an error unless some group has a member of this name."""
    if name is not None and not any(group.reference(name) for group in groups):
        known = ", ".join(dict.fromkeys(label for group in groups for label in group.members))
        raise EtagError(f"There is no run of the reference '{name}': choose one of {known}.")


def check_comparable(records: Sequence[RunRecord]) -> None:
    """Raise an error unless all runs are on the same data and split."""
    if not records:
        raise EtagError("There is nothing to compare: give at least one run directory.")
    first = records[0]
    for other in records[1:]:
        if _where(other) != _where(first):
            raise EtagError(
                f"Only runs on the same data and split can be compared: '{first.path}' is on {_where(first)}, "
                f"'{other.path}' is on {_where(other)}."
            )


def _where(record: RunRecord) -> str:
    metrics = record.metrics
    return f"{metrics.data} {metrics.split} ({' + '.join(map(str, metrics.classes_per_task))} classes)"


def group_runs(records: Sequence[RunRecord], title: str, column: str | None = None) -> RunGroup:
    """Group runs on the same data and split by method and variant."""
    by_label: dict[str, list[RunRecord]] = {}
    for record in records:
        by_label.setdefault(label_of(record), []).append(record)
    members = [member for label, runs in by_label.items() for member in _members(label, runs)]
    return RunGroup(title, {member.label: member for member in sorted(members, key=_order)}, column)


def _order(member: MethodRuns) -> tuple[bool, int, str]:
    rows = printed().methods
    place = rows.index(member.method) if member.method in rows else len(rows)
    return member.is_variant, place, member.label


def label_of(run: RunRecord) -> str:
    """METHOD or METHOD-VARIANT: the directory's name without data, split and seed; only METHOD if the directory is
    not named after the method."""
    metrics = run.metrics
    name = re.sub(rf"-(seed\d+|{metrics.seed})$", "", run.path.resolve().name)
    name = name.removesuffix(f"-{metrics.data}-{metrics.split}")
    return name if name.startswith(f"{metrics.method}-") else metrics.method


def _members(label: str, runs: Sequence[RunRecord]) -> list[MethodRuns]:
    method = runs[0].metrics.method
    variant = label.removeprefix(method).removeprefix("-")
    title = f"{method_title(method)} ({variant})" if variant else method_title(method)
    if max(Counter(run.metrics.seed for run in runs).values()) == 1:
        ordered = sorted(runs, key=lambda run: run.metrics.seed)
        return [MethodRuns(label, title, method, tuple(ordered))]
    # runs of one seed must differ in something that their names do not say: each stands alone, named by its directory
    apart = _distinct_names(runs)
    return [MethodRuns(f"{label}-{name}", f"{title} ({name})", method, (run,)) for name, run in apart.items()]


def _distinct_names(runs: Sequence[RunRecord]) -> dict[str, RunRecord]:
    """The runs by the shortest ends of their paths that differ."""
    paths = [run.path.resolve() for run in runs]
    for depth in range(1, max(len(path.parts) for path in paths)):
        names = [Path(*path.parts[-depth:]).as_posix() for path in paths]
        if len(set(names)) == len(names):
            return dict(zip(names, runs, strict=True))
    raise EtagError(f"The run '{runs[0].path}' is given twice: give it once.")


def representatives(members: Sequence[MethodRuns]) -> list[tuple[str, RunRecord]]:
    """One run per member for the figures of single runs, with its title: of the lowest seed that all have, if any."""
    shared = set.intersection(*(set(member.seeds) for member in members))
    runs = [next((r for r in member.runs if r.metrics.seed in shared), member.runs[0]) for member in members]
    return [
        (member.title if len(member.runs) == 1 else f"{member.title}, seed {run.metrics.seed}", run)
        for member, run in zip(members, runs, strict=True)
    ]


def seeds_differ(members: Sequence[MethodRuns]) -> bool:
    """Whether the members have different numbers of seeds."""
    return len({len(member.runs) for member in members}) > 1


def relative(path: Path, beside: Path) -> str:
    """The path of a file or directory as seen from another directory, as in a link."""
    return Path(os.path.relpath(path, beside)).as_posix()
