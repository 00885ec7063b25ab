"""The page of a collection of runs, with its tables and figures as files beside it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etag.report import pictures, results, studies
from etag.report.collection import Collection, Scene, read_collection
from etag.report.comparison import relative
from etag.report.page import put, write_figure, write_page
from etag.report.plates import (
    DETAILED,
    Key,
    Plate,
    confusion_plates,
    curves_plate,
    embedding_plates,
    slopes_plate,
    temperature_plate,
)
from etag.report.records import RunRecord
from etag.report.tables import Table

COMMAND = "command.txt"  # that a grid leaves in a run's directory


@dataclass(frozen=True)
class Section:
    """A part of the page; it is left out if there is nothing in it."""

    title: str
    about: str = ""
    tables: Sequence[Table] = ()
    plates: Sequence[Plate] = ()
    four: bool = False  # pictures that are looked at side by side
    key: Key = field(default_factory=list)

    @property
    def anchor(self) -> str:
        """Where links lead to."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")

    @property
    def notes(self) -> list[str]:
        """What must be said about its tables, once."""
        return list(dict.fromkeys(note for table in self.tables for note in table.notes))


def write_collection(folders: Sequence[Path], out: Path) -> tuple[Path, Collection]:
    """Write the page, and `tables/` and `figures/` beside it; returns its path and what was found."""
    collection = read_collection(folders)
    sections = [part for part in _sections(collection.scenes) if part.tables or part.plates]
    for part in sections:
        for table in part.tables:
            _write_table(table, out.parent / "tables")
        for plate in part.plates:
            _write_plate(plate, out.parent / "figures")
    return write_page(out, "collection.html", _values(collection, sections, out.parent)), collection


def _write_table(table: Table, folder: Path) -> None:
    for ending, text in (("csv", table.csv()), ("md", table.markdown()), ("tex", table.latex())):
        put(folder / f"{table.name}.{ending}", text)


def _write_plate(plate: Plate, folder: Path) -> None:
    put(folder / f"{plate.name}.csv", plate.data)
    if plate.picture.figure is not None:
        for ending in ("svg", "png"):
            write_figure(plate.picture.figure, folder / f"{plate.name}.{ending}")


def _sections(scenes: Sequence[Scene]) -> list[Section]:
    main = [scene for scene in scenes if scene.is_main]
    rankings = [ranking for scene in main if (ranking := results.ranking(scene))]
    components = [scene for scene in scenes if len(scene.some(studies.COMPONENTS)) > 2]
    temperatures = [(scene, by_tau) for scene in scenes if len(by_tau := studies.by_temperature(scene)) > 1]
    compared = [scene for scene in scenes if len(scene.entries) > 1]
    return [
        Section("Results", tables=[results.main_table(main)] if main else []),
        Section(
            "Accuracy after each task",
            plates=[curves_plate("accuracy", s, s.some(DETAILED)) for s in main if s.some(DETAILED)],
        ),
        Section(
            "Agreement with the paper",
            tables=[results.agreement_table(rankings)] if rankings else [],
            plates=[slopes_plate(ranking) for ranking in rankings],
        ),
        Section("eTag minus each other method", tables=studies.tables(compared, results.paired_table)),
        Section(
            "Components",
            tables=studies.tables(scenes, studies.ablation_table),
            plates=[curves_plate("components", s, s.some(studies.COMPONENTS)) for s in components],
        ),
        Section("Self-supervised tasks", tables=studies.tables(scenes, studies.self_supervised_table)),
        Section("Generative methods", tables=studies.tables(scenes, studies.generative_table)),
        Section("Temperature", plates=[temperature_plate(scene, by_tau) for scene, by_tau in temperatures]),
        *_features(scenes),
        Section(
            "Confusion matrices",
            pictures.ABOUT_CONFUSION,
            plates=[plate for scene in scenes for plate in confusion_plates(scene)],
            four=True,
        ),
        Section("Time", tables=studies.tables(compared, studies.time_table)),
        Section("Size", tables=studies.tables(compared, studies.size_table)),
    ]


def _features(scenes: Sequence[Scene]) -> list[Section]:
    """A section a split: each has its own key."""
    about = (
        "Features of test images, laid out by t-SNE anew after each task; a color is the same class in all panels."
    )
    found = [(scene, *embedding_plates(scene)) for scene in scenes]
    return [
        Section(f"Features, {scene.title}", about, plates=plates, four=True, key=key) for scene, plates, key in found
    ]


def _values(collection: Collection, sections: Sequence[Section], beside: Path) -> dict[str, Any]:
    runs = collection.runs
    return {
        "name": ", ".join(grid.name for grid in collection.grids) or "Collection of runs",
        "summaries": [grid.file.summary for grid in collection.grids if grid.file.summary],
        "scenes": collection.scenes,
        "runs": [(relative(run.path, beside), run, _command(run, beside)) for run in runs],
        "unfinished": [relative(path, beside) for path in collection.unfinished],
        "headlines": [(scene.title, results.headline(scene)) for scene in collection.scenes if scene.is_main],
        "sections": sections,
        "grids": collection.grids,
        "machines": _each(run.metrics.machine for run in runs),
        "versions": {
            name: _each(run.metrics.versions.get(name, "") for run in runs)
            for name in dict.fromkeys(name for run in runs for name in run.metrics.versions)
        },
        "first": min(run.metrics.date for run in runs),
        "last": max(run.metrics.date for run in runs),
    }


def _each(words: Any) -> str:
    return ", ".join(word for word in dict.fromkeys(words) if word)


def _command(run: RunRecord, beside: Path) -> str:
    file = run.path / COMMAND
    return file.read_text().strip() if file.is_file() else f"etag run {relative(run.path / 'config.yaml', beside)}"
