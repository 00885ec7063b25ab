"""Folders of runs, as `etag bench` writes them: which runs are there, and which were planned but are missing."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from etag.core.errors import EtagError
from etag.core.options import file_error
from etag.core.reading import read_text
from etag.experiments import recipes, yaml_files
from etag.experiments.grid import MAX_RUNS
from etag.experiments.paper import published
from etag.report.groups import RunGroup, check_comparable, group_runs
from etag.report.records import RunRecord, read_run

METRICS, CONFIG, GRID = "metrics.json", "config.yaml", "grid.yaml"
SEARCH = "search"
APART = {SEARCH, "adapted"}  # folders of runs that prepare others: a search, or an adapted backbone


class PlannedBlock(BaseModel):
    """Every combination of these is a planned run. Options are not checked: the file may be older than they are."""

    recipe: str | None = None
    methods: list[str] = []
    splits: list[str] | None = None
    seeds: list[int] = [0, 1, 2]
    variants: dict[str, Any] = {"": {}}

    @property
    def count(self) -> int:
        """The number of its planned runs."""
        return len(self.seeds) * len(self.splits or [""]) * len(self.methods) * len(self.variants)

    def names(self) -> Iterator[tuple[str | None, str]]:
        """Split and directory name of each planned run; the split is None where it cannot be known."""
        splits: Sequence[str | None] = self.splits or [self._recipe_split()]
        for seed, split, method, variant in product(self.seeds, splits, self.methods, self.variants):
            yield split, f"{method}{f'-{variant}' if variant else ''}-seed{seed}"

    def _recipe_split(self) -> str | None:
        try:
            split = recipes.load(self.recipe).get("split") if self.recipe else None
        except EtagError:  # a recipe of another machine or of another version
            return None
        return split if isinstance(split, str) else None


class GridFile(BaseModel):
    """What the report needs of a grid's file."""

    summary: str = ""
    notice: str = ""  # shown at the top of the page
    paper: dict[str, str] = {}  # by split: the column of the paper's Table 1 that it stands for
    blocks: list[PlannedBlock] = []


@dataclass(frozen=True)
class GridFolder:
    """A folder of results that holds the file of the grid it was made from."""

    path: Path
    text: str
    file: GridFile

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.path.resolve().name

    def command(self, start: Path) -> str:
        """The command that repeats the whole grid."""
        if self.name in recipes.grids():
            return f"etag bench {self.name}"
        folder = relative(self.path, start)
        return f"etag bench {folder}/{GRID} --results {folder}"

    @cached_property
    def trials(self) -> list[RunRecord]:
        """The finished runs of its search for settings."""
        return [read_run(file.parent, logs=False) for file in sorted((self.path / SEARCH).rglob(METRICS))]

    def missing(self) -> list[str]:
        """The planned runs of which there is nothing yet, as paths below the folder."""
        files = (path for name in (METRICS, CONFIG) for path in self.path.rglob(name))
        existing = {path.relative_to(self.path).parent for path in files}
        planned = dict.fromkeys(name for block in self.file.blocks for name in block.names())
        by_name = {path.name for path in existing if APART.isdisjoint(path.parts)}
        return [
            f"{split}/{name}" if split else name
            for split, name in planned
            if (Path(split, name) not in existing if split else name not in by_name)
        ]


@dataclass(frozen=True)
class Collection:
    """Groups of runs that one page shows."""

    groups: list[RunGroup]
    grids: list[GridFolder]
    unfinished: list[Path]
    named: bool = False  # by their own directories, not by folders that hold them

    @property
    def runs(self) -> list[RunRecord]:
        """Every finished run."""
        return [run for group in self.groups for member in group.all for run in member.runs]

    @property
    def notices(self) -> list[str]:
        """What the files of the grids want every reader to know first."""
        return [grid.file.notice for grid in self.grids if grid.file.notice]


def relative(path: Path, start: Path) -> str:
    """The path of a file or directory as seen from another directory, as in a link."""
    return Path(os.path.relpath(path, start)).as_posix()


def is_run(path: Path) -> bool:
    """Whether it is the directory of one finished run."""
    return (path / METRICS).is_file()


def named_runs(paths: Sequence[Path]) -> Collection:
    """Runs on the same data and split, given by their directories, as one group."""
    records = [read_run(path, logs=False) for path in {path.resolve(): path for path in paths}.values()]
    check_comparable(records)
    return Collection([group_runs(records, _title(records[0]))], [], [], named=True)


def read_collection(folders: Sequence[Path]) -> Collection:
    """All finished runs below these folders, except those of a parameter search."""
    paths: dict[Path, Path] = {}
    for folder in folders:
        folders_of_runs = _below(folder, METRICS)
        if not folders_of_runs:
            raise EtagError(f"'{folder}' holds no finished run: there is no {METRICS} in it or below it.")
        paths |= {path.resolve(): path for path in folders_of_runs}
    by_place: dict[tuple[object, ...], list[RunRecord]] = {}
    for path in paths.values():
        run = read_run(path, logs=False)
        m = run.metrics
        by_place.setdefault((run.path.parent.resolve(), m.data, m.split, *m.classes_per_task), []).append(run)
    titles = Counter(_title(own[0]) for own in by_place.values())
    grids: dict[Path, GridFolder] = {}
    groups = [_group(own, titles[_title(own[0])] == 1, grids) for own in by_place.values()]
    groups.sort(key=lambda group: group.column is None)  # first those that stand for a column of the paper
    unfinished = [path for folder in folders for path in _below(folder, CONFIG) if not is_run(path)]
    return Collection(groups, list(grids.values()), unfinished)


def _below(folder: Path, name: str) -> list[Path]:
    """The folders that hold a file of this name."""
    places = (file.relative_to(folder).parent for file in folder.rglob(name))
    return [folder / place for place in sorted(places) if APART.isdisjoint(place.parts)]


def _title(run: RunRecord) -> str:
    return f"{run.metrics.data} {run.metrics.split}"


def _group(runs: Sequence[RunRecord], title_is_unique: bool, grids: dict[Path, GridFolder]) -> RunGroup:
    """Group the runs of one folder; the grid that they belong to is added to `grids`."""
    folder, title = runs[0].path.parent, _title(runs[0])
    grid_folder = next((place for place in (folder, folder.parent) if (place / GRID).is_file()), None)
    if grid_folder is None:
        return group_runs(runs, title if title_is_unique else f"{title} ({folder.resolve().name})")
    grid = grids.setdefault(grid_folder.resolve(), _grid(grid_folder))
    title = title if title_is_unique else f"{title} ({grid.name})"
    return group_runs(runs, title, grid.file.paper.get(runs[0].metrics.split))


def _grid(folder: Path) -> GridFolder:
    path = folder / GRID
    text = read_text(path, yaml_files.MAX_BYTES)
    content = yaml_files.parse_mapping(text, str(path))
    blocks = content.get("runs", [{}])
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise EtagError(f"{path}: 'runs' must be a list of blocks, each with its methods, seeds and so on.")
    try:
        file = GridFile.model_validate(content | {"blocks": [content | block for block in blocks]})
    except ValidationError as error:
        raise file_error(error, str(path)) from error
    if sum(block.count for block in file.blocks) > MAX_RUNS:
        raise EtagError(f"{path} describes more than {MAX_RUNS:,} runs.")
    for column in file.paper.values():
        if column not in published().table1:
            known = ", ".join(published().table1)
            raise EtagError(f"{path}: the paper's Table 1 has no column '{column}', only {known}.")
    return GridFolder(folder, text, file)
