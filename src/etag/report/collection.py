"""Collections of runs, as a grid leaves them: which belong together, and what each is called."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from etag.core.errors import EtagError
from etag.core.options import file_error
from etag.experiments import yaml
from etag.experiments.paper import column_of, printed
from etag.report.comparison import LOWER_BOUND, UPPER_BOUND, Entry
from etag.report.quantities import A_WEIGHTED, Quantity, Spread
from etag.report.records import Metrics, RunRecord, read_run
from etag.report.style import method_name

BOUNDS = (LOWER_BOUND, UPPER_BOUND)
OURS = "etag"
BASELINES = tuple(f"b{number}" for number in range(5))
METRICS, GRID, SEARCH = "metrics.json", "grid.yaml", "search"  # runs below `search/` only tried values
SEED = re.compile(r"-seed\d+$")
KEPT_IMAGES = "exemplars"  # a part of what is stored


class GridFile(BaseModel):
    """What the report needs of a grid's file."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    summary: str = ""
    paper: dict[str, str] = {}  # by split: the column of the paper's Table 1 that it stands for


@dataclass(frozen=True)
class Grid:
    """A folder with a grid's file."""

    path: Path
    text: str
    file: GridFile

    @property
    def name(self) -> str:
        """What `etag bench` knows it by."""
        return self.path.resolve().name


@dataclass(frozen=True)
class Scene:
    """The runs of one folder on the same data and split, by label: METHOD or METHOD-VARIANT."""

    title: str
    grid: Grid | None
    entries: dict[str, Entry]

    @property
    def metrics(self) -> Metrics:
        """Of any run: they have data, split and classes in common."""
        return next(iter(self.entries.values())).runs[0].metrics

    @property
    def slug(self) -> str:
        """The title in names of files."""
        return re.sub(r"[^\w.-]+", "-", self.title).strip("-")

    @property
    def column(self) -> str | None:
        """The column of the paper's Table 1 that it stands for."""
        stated = self.grid.file.paper.get(self.metrics.split) if self.grid else None
        return stated or column_of(self.metrics.data, self.metrics.split)

    @property
    def methods(self) -> list[str]:
        """Methods as they are by default, without variants; the paper's rows first."""
        own = [label for label, entry in self.entries.items() if label == entry.method]
        rows = printed().methods
        return sorted(own, key=lambda method: (rows.index(method) if method in rows else len(rows), method))

    @property
    def labels(self) -> list[str]:
        """Methods, then variants."""
        return [*self.methods, *sorted(self.entries.keys() - set(self.methods))]

    @property
    def compared(self) -> list[str]:
        """Methods that stand for themselves: the paper's baselines are eTag with parts left out."""
        return [method for method in self.methods if method not in BASELINES]

    @property
    def competing(self) -> list[str]:
        """Those, the bounds excepted."""
        return [method for method in self.compared if method not in BOUNDS]

    @property
    def is_main(self) -> bool:
        """Whether it compares methods of the paper's Table 1, and not only parts of one."""
        return len(set(self.competing) & set(printed().methods)) > 1

    def some(self, labels: Iterable[str]) -> list[Entry]:
        """Those of these that are there."""
        return [self.entries[label] for label in labels if label in self.entries]


@dataclass(frozen=True)
class Collection:
    """All that was found."""

    scenes: list[Scene]
    unfinished: list[Path]

    @property
    def runs(self) -> list[RunRecord]:
        """Every finished run."""
        return [run for scene in self.scenes for label in scene.labels for run in scene.entries[label].runs]

    @property
    def grids(self) -> list[Grid]:
        """The grids that the runs belong to."""
        return list({scene.grid.path: scene.grid for scene in self.scenes if scene.grid}.values())


def is_run(path: Path) -> bool:
    """Whether it is the directory of one finished run."""
    return (path / METRICS).is_file()


def read_collection(folders: Sequence[Path]) -> Collection:
    """Everything below these folders, but what a grid only tried."""
    paths = {path.resolve(): path for folder in folders for path in _runs_below(folder)}
    runs = [read_run(path, logs=False) for path in paths.values()]
    by_place: dict[tuple[object, ...], list[RunRecord]] = {}
    for run in runs:
        m = run.metrics
        by_place.setdefault((run.path.parent.resolve(), m.data, m.split, *m.classes_per_task), []).append(run)
    titles = Counter(_title(own[0]) for own in by_place.values())
    scenes = [_scene(own, alone=titles[_title(own[0])] == 1) for own in by_place.values()]
    scenes.sort(key=lambda scene: scene.column is None)  # those that stand for the paper's first
    unfinished = [p for folder in folders for p in _below(folder, "config.yaml") if not is_run(p)]
    return Collection(scenes, unfinished)


def _runs_below(folder: Path) -> list[Path]:
    found = _below(folder, METRICS)
    if not found:
        raise EtagError(f"'{folder}' holds no finished run: there is no {METRICS} in it or below it.")
    return found


def _below(folder: Path, name: str) -> list[Path]:
    """The folders that hold a file of this name."""
    places = (file.relative_to(folder).parent for file in folder.rglob(name))
    return [folder / place for place in sorted(places) if SEARCH not in place.parts]


def _title(run: RunRecord) -> str:
    return f"{run.metrics.data} {run.metrics.split}"


def _scene(runs: Sequence[RunRecord], alone: bool) -> Scene:
    folder = runs[0].path.parent
    grid = next((_grid(place) for place in (folder, folder.parent) if (place / GRID).is_file()), None)
    where = grid.name if grid else folder.resolve().name
    by_label: dict[str, list[RunRecord]] = {}
    for run in runs:
        by_label.setdefault(label_of(run), []).append(run)
    entries = {label: _entry(label, own) for label, own in by_label.items()}
    return Scene(_title(runs[0]) if alone else f"{_title(runs[0])} ({where})", grid, entries)


def _grid(folder: Path) -> Grid:
    content = yaml.read(folder / GRID)
    try:
        file = GridFile.model_validate(content)
    except ValidationError as error:
        raise file_error(error, str(folder / GRID)) from error
    for column in file.paper.values():
        if column not in printed().table1:
            known = ", ".join(printed().table1)
            raise EtagError(f"{folder / GRID}: the paper's Table 1 has no column '{column}', only {known}.")
    return Grid(folder, (folder / GRID).read_text(), file)


def label_of(run: RunRecord) -> str:
    """The directory's name without its seed; the method's, where it is not named after it."""
    name, method = SEED.sub("", run.path.resolve().name), run.metrics.method
    return name if name == method or name.startswith(f"{method}-") else method


def _entry(label: str, runs: Sequence[RunRecord]) -> Entry:
    method = runs[0].metrics.method
    variant = label.removeprefix(method).removeprefix("-")
    runs = sorted(runs, key=lambda run: run.metrics.seed)
    for run, other in pairwise(runs):
        if run.metrics.seed == other.metrics.seed:
            raise EtagError(
                f"'{run.path}' and '{other.path}' are both {label} with seed {run.metrics.seed}: name directories of "
                "variants METHOD-VARIANT-seedN, or move one of them away."
            )
    name = f"{method_name(method)} ({variant})" if variant else method_name(method)
    return Entry(name, method, tuple(runs))


def percents(entry: Entry, quantity: Quantity = A_WEIGHTED) -> dict[int, float]:
    """By seed, in percent."""
    return {seed: 100 * value for seed, value in zip(entry.seeds, entry.values(quantity), strict=True)}


def percent_spread(entry: Entry, quantity: Quantity = A_WEIGHTED) -> Spread:
    """Over the seeds, in percent."""
    return Spread.of(list(percents(entry, quantity).values()))


def keeps_images(entry: Entry) -> bool:
    """Whether it stores exemplars."""
    return any(KEPT_IMAGES in run.metrics.stored_bytes_by_part for run in entry.runs)
