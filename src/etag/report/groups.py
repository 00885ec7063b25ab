"""Runs that can be compared: those of one method that differ in the seed only, and all on the same data and split."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from etag.core.errors import EtagError
from etag.experiments.paper import column_of, published
from etag.report.agreement import Spread
from etag.report.figures import Bar, Curve
from etag.report.layout import layout
from etag.report.records import Metrics, RunRecord
from etag.report.style import Style, method_styles, method_title, uses_all_data

A = "A_weighted"  # the metric that methods are ranked by
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

    def percents(self, metric: str = A) -> dict[int, float]:
        """The values of a metric in percent, by seed."""
        return {run.metrics.seed: 100 * run.metrics.values[metric] for run in self.runs}

    def spread(self, metric: str = A) -> Spread:
        """Mean and deviation of a metric over the seeds, in percent."""
        return Spread.of(list(self.percents(metric).values()))

    def curve(self, style: Style) -> Curve:
        """Weighted accuracy after each task, over the seeds."""
        tasks = zip(*(run.metrics.step_accuracy_weighted for run in self.runs), strict=True)
        steps = [Spread.of(values) for values in tasks]
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
        """Whether it is a bound, such as joint training, that does not compete for the best value."""
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
    column: str | None  # of the paper's Table 1, if the group stands for one

    @property
    def all(self) -> list[MethodRuns]:
        """All members, in their order."""
        return list(self.members.values())

    @property
    def metrics(self) -> Metrics:
        """Those of any run: all have data, split and classes in common."""
        return self.all[0].runs[0].metrics

    @property
    def slug(self) -> str:
        """The title in names of files."""
        return re.sub(r"[^\w.-]+", "-", self.title).strip("-")

    def some(self, labels: Iterable[str]) -> list[MethodRuns]:
        """The members with these labels, as far as there are any."""
        return [self.members[label] for label in labels if label in self.members]

    @property
    def detailed(self) -> list[MethodRuns]:
        """The members whose matrices are shown: all, or of many those that the paper shows, or the best."""
        if len(self.members) <= MANY:
            return self.all
        chosen = self.some(layout().detailed)
        return chosen if len(chosen) > 1 else best_first(self.all)[:4]

    def reference(self, name: str | None) -> MethodRuns | None:
        """The member of this label or title; without a name, the paper's method or else that with the highest A."""
        if name is not None:
            return next((m for m in self.all if name in (m.label, m.title)), None)
        competing = [member for member in self.all if not member.is_bound]
        return self.members.get(layout().main) or best_first(competing or self.all)[0]


def best_first(members: Iterable[MethodRuns]) -> list[MethodRuns]:
    """From the highest mean A to the lowest."""
    return sorted(members, key=lambda member: member.spread().mean, reverse=True)


def styled(members: Sequence[MethodRuns]) -> list[tuple[MethodRuns, Style]]:
    """The members, each with its style in a figure that shows all of them."""
    return list(zip(members, method_styles([member.method for member in members]), strict=True))


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
    """Group runs by method and variant; `column` of Table 1 is what they stand for, if data and split do not say it."""
    by_label: dict[str, list[RunRecord]] = {}
    for record in records:
        by_label.setdefault(_label(record), []).append(record)
    members = [member for label, runs in by_label.items() for member in _members(label, runs)]
    return RunGroup(
        title, {member.label: member for member in sorted(members, key=_order)}, column or _same_setting(records)
    )


def _same_setting(records: Sequence[RunRecord]) -> str | None:
    """The column of Table 1 with the data and split of these runs; None if there is none, or if a run started from
    pre-trained weights: all networks of the paper are trained from scratch."""
    column = column_of(records[0].metrics.data, records[0].metrics.split)
    return None if column is None or any(record.is_pretrained for record in records) else column


def _order(member: MethodRuns) -> tuple[bool, int, str]:
    rows = published().methods
    place = rows.index(member.method) if member.method in rows else len(rows)
    return member.is_variant, place, member.label


def _label(run: RunRecord) -> str:
    """METHOD or METHOD-VARIANT from the directory's name; METHOD if it is not named after the method."""
    metrics = run.metrics
    name = re.sub(rf"-(seed\d+|{metrics.seed})$", "", run.path.resolve().name)
    name = name.removesuffix(f"-{metrics.data}-{metrics.split}")
    return name if name.startswith(f"{metrics.method}-") else metrics.method


def _members(label: str, runs: Sequence[RunRecord]) -> list[MethodRuns]:
    method = runs[0].metrics.method
    variant = label.removeprefix(method).removeprefix("-")
    title = f"{method_title(method)} ({variant})" if variant else method_title(method)
    by_seed = {run.metrics.seed: run for run in runs}
    if len(by_seed) == len(runs):
        return [MethodRuns(label, title, method, tuple(run for _, run in sorted(by_seed.items())))]
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
