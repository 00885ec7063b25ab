"""The page that compares runs; for folders of runs, with all tables and figures as files beside it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from etag.core.errors import EtagError
from etag.core.reading import read_limited
from etag.report import figures, page_figures, protocol, results, studies
from etag.report.collection import Collection, is_run, named_runs, read_collection, relative
from etag.report.groups import RunGroup, check_reference, styled
from etag.report.headline import headline
from etag.report.page import REPORT, check_figure_name, write_figure, write_file, write_page, write_run_report
from etag.report.page_figures import InlineFigure, Key
from etag.report.records import RunRecord
from etag.report.tables import Table, rows_csv

COMMAND = "command.txt"  # `etag bench` writes it into the directory of a run
MAX_COMMAND = 1 << 20  # bytes of it
ABOUT_TRAINING = "A comparison is fair if the lengths are equal; what a method needs beyond them is part of its price."
T = TypeVar("T")


@dataclass(frozen=True)
class Section:
    """A part of the page. A section without tables and figures is left out."""

    title: str
    about: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[InlineFigure] = ()
    small: bool = False  # figures that readers compare side by side
    key: Key = field(default_factory=list)

    @property
    def anchor(self) -> str:
        """The target of links to this section."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")

    @property
    def notes(self) -> list[str]:
        """The notes of its tables, each once."""
        return list(dict.fromkeys(note for table in self.tables for note in table.notes))


def write_comparison(paths: Sequence[Path], out: Path, reference: str | None = None) -> tuple[Path, Collection]:
    """Write a page that compares runs; returns its path and the runs. `reference` names what all are compared with. For
    folders of runs, tables and figures are written beside it; of runs that are named, each gets its own report."""
    collection = _collection(paths)
    check_reference(collection.groups, reference)
    sections = _sections(collection, reference)
    if collection.named:
        for run in paths:
            if not (run / REPORT).exists():
                write_run_report(run)
    else:
        notices = [f"Notice. {notice}" for notice in collection.notices]
        for part in sections:
            for table in part.tables:
                full, folder = replace(table, notes=[*notices, *table.notes]), out.parent / "tables"
                for ending, text in (("csv", full.csv()), ("md", full.markdown()), ("tex", full.latex())):
                    write_file(folder / f"{table.name}.{ending}", text)
            for image in part.figures:
                write_file(out.parent / "figures" / f"{image.name}.csv", rows_csv(image.rows))
                if image.figure is not None:
                    for ending in ("svg", "png"):
                        write_figure(image.figure, out.parent / "figures" / f"{image.name}.{ending}")
    return write_page(out, "comparison.html", _values(collection, sections, out.parent)), collection


def _collection(paths: Sequence[Path]) -> Collection:
    return named_runs(paths) if all(map(is_run, paths)) else read_collection(paths)


def write_curves(paths: Sequence[Path], out: Path) -> Path:
    """Draw the accuracy after each task of runs on the same data and split; returns the path of the figure."""
    check_figure_name(out)
    groups = _collection(paths).groups
    if len(groups) > 1:
        titles = ", ".join(group.title for group in groups)
        raise EtagError(f"One figure shows runs on the same data and split, but these are on {titles}: name fewer.")
    curves = [member.curve(style) for member, style in styled(groups[0].all)]
    return write_figure(figures.accuracy_curves(groups[0].metrics.seen, curves), out)


def _sections(collection: Collection, reference: str | None) -> list[Section]:
    """All sections that have something to show."""
    groups = collection.groups
    several = [group for group in groups if len(group.members) > 1]
    chosen = [(group, member) for group in several if (member := group.reference(reference))]
    titles = dict.fromkeys(member.title for _, member in chosen)
    rankings = _present(map(results.ranking, groups))
    temperatures = [(group, by_tau) for group in groups if len(by_tau := studies.by_temperature(group)) > 1]
    sections = [
        Section("Results", tables=[results.results_table(group) for group in groups]),
        Section("Accuracy after each task", figures=_joined(map(page_figures.accuracy_figures, groups))),
        Section(
            f"{', '.join(titles)} minus each other method",
            tables=_present(results.paired_table(group, member) for group, member in chosen),
        ),
        Section("Training", ABOUT_TRAINING, tables=_present(map(protocol.training_table, several))),
        Section(
            "Settings that were searched for",
            tables=_present(protocol.search_table(grid.path, grid.trials) for grid in collection.grids),
        ),
        Section(
            "Agreement with the paper",
            tables=[results.agreement_table(rankings)] if rankings else [],
            figures=[page_figures.agreement_figure(ranking) for ranking in rankings],
        ),
        Section(
            "Components",
            tables=_present(map(studies.ablation_table, groups)),
            figures=_present(map(page_figures.component_figure, groups)),
        ),
        Section("Self-supervised tasks", tables=_present(map(studies.self_supervised_table, groups))),
        Section("Generative methods", tables=_present(map(studies.generative_table, groups))),
        Section("Temperature", figures=[page_figures.temperature_figure(*one) for one in temperatures]),
        *map(_features, groups),
        Section(
            "Confusion matrices",
            page_figures.ABOUT_CONFUSION,
            figures=_joined(map(page_figures.confusion_figures, groups)),
            small=True,
        ),
        Section(
            "Accuracy matrices",
            page_figures.ABOUT_ACCURACY_MATRIX,
            figures=_joined(map(page_figures.accuracy_matrix_figures, groups)),
            small=True,
        ),
        Section(
            "Time",
            tables=[studies.time_table(group, group.reference(reference)) for group in several],
            figures=[page_figures.time_figure(group) for group in several],
        ),
        Section("Size", tables=[studies.size_table(group) for group in groups]),
    ]
    return [section for section in sections if section.tables or section.figures]


def _features(group: RunGroup) -> Section:
    """Every group has a section of its own, because each has its own key."""
    images, key = page_figures.feature_figures(group)
    about = f"{page_figures.ABOUT_TSNE} A color means the same class or task in all panels."
    if not key:
        about += " These runs have different orders of classes: the report of each has the key to its colors."
    return Section(f"Features, {group.title}", about, figures=images, small=True, key=key)


def _values(collection: Collection, sections: Sequence[Section], start: Path) -> dict[str, Any]:
    runs = collection.runs
    return {
        "collection": collection,
        "sections": sections,
        "headline": headline,
        "runs": [(relative(run.path, start), _link(run, start), run, _command(run, start)) for run in runs],
        "unfinished": [relative(path, start) for path in collection.unfinished],
        "grids": [(grid, grid.command(start)) for grid in collection.grids],
        "machines": _distinct(run.metrics.machine for run in runs),
        "precisions": _distinct(run.metrics.precision for run in runs),
        "versions": {
            name: _distinct(run.metrics.versions.get(name, "") for run in runs)
            for name in dict.fromkeys(name for run in runs for name in run.metrics.versions)
        },
        "dates": sorted(run.metrics.date for run in runs),
    }


def _present(items: Iterable[T | None]) -> list[T]:
    return [item for item in items if item is not None]


def _joined(lists: Iterable[list[T]]) -> list[T]:
    return [item for items in lists for item in items]


def _distinct(words: Iterable[str]) -> str:
    return ", ".join(word for word in dict.fromkeys(words) if word)


def _link(run: RunRecord, start: Path) -> str:
    """The address of the run's own report; empty if it has none."""
    report = run.path / REPORT
    return quote(relative(report, start)) if report.is_file() else ""


def _command(run: RunRecord, start: Path) -> str:
    file = run.path / COMMAND
    if not file.is_file():
        return f"etag run {relative(run.path / 'config.yaml', start)}"
    return read_limited(file, MAX_COMMAND).decode(errors="replace").strip()
