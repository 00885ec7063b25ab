"""Grids: a YAML file that names methods x splits x variants x seeds, and the runs that it stands for."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol, TypeVar

from pydantic import Field, ValidationError, field_validator

from etag.core.errors import EtagError
from etag.core.options import Options, file_error
from etag.data.source import Seed
from etag.experiments import recipes, yaml
from etag.experiments.config import RunConfig, resolve

Score = Callable[[str], float | None]  # of the run of this name; None where it is not done


class Search(Options):
    """Values that are tried on the base task's classes alone, judged on images that are held out of its training."""

    over: dict[str, list[Any]] = Field(min_length=1, description="values by dotted key; all combinations are tried")
    split: str = Field(description="how the base task's classes are cut to try them, such as b4-2x2")
    classes: int = Field(description="how many classes the base task has", gt=1)
    held_out: float = Field(0.2, gt=0, lt=1, description="share of each class's training images to judge on")


class Block(Options):
    """Every combination of what it holds, by one recipe."""

    recipe: str
    preset: str | None = None
    methods: list[str] = Field(min_length=1)
    splits: list[str] | None = Field(None, min_length=1, description="None is the recipe's own")
    seeds: list[Seed] = Field([0, 1, 2], min_length=1)
    settings: dict[str, Any] = Field(default_factory=dict, description="options by dotted key")
    variants: dict[str, dict[str, Any]] = Field(
        {"": {}}, min_length=1, description="by name: settings on top; '' is the plain one"
    )
    search: Search | None = None

    @field_validator("settings")
    @classmethod
    def _without_what_has_a_place(cls, settings: dict[str, Any]) -> dict[str, Any]:
        if found := {"method", "split", "seed"} & settings.keys():
            raise ValueError(f"{min(found)} has a place of its own, {min(found)}s")
        return settings


@dataclass(frozen=True)
class PlannedRun:
    """A run of a grid. Its name is its directory below the grid's."""

    name: str
    label: str  # what differs in the seed only has the same
    config: RunConfig
    command: str  # that makes it again

    @property
    def candidate(self) -> bool:
        """Whether it belongs to a search."""
        return self.name.startswith("search/")


@dataclass(frozen=True)
class Grid:
    """A grid's file, read."""

    name: str
    text: str
    blocks: tuple[Block, ...]

    @classmethod
    def load(cls, name: str, plugins: Sequence[str] = ()) -> "Grid":
        """By name, of those that come with the package, or by path; its runs are made with these plug-ins."""
        path = recipes.grid_file(name)
        content = yaml.read(path)
        for key in ("summary", "notice", "paper"):  # for readers of the results
            content.pop(key, None)
        blocks = content.pop("runs", [{}])
        if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            raise EtagError(f"{path}: 'runs' should list blocks, each with its methods, seeds and the like.")
        try:
            found = [Block.model_validate(content | block) for block in blocks]
        except ValidationError as error:
            raise file_error(error, str(path)) from None
        if plugins:
            found = [b.model_copy(update={"settings": b.settings | {"plugins": [*plugins]}}) for b in found]
        return cls(path.stem, path.read_text(), tuple(found))

    def everything(self) -> list[PlannedRun]:
        """All runs, a search's choice being any: what is tried costs the same."""
        return self.plan(lambda _: 0.0)

    def plan(self, score: Score) -> list[PlannedRun]:
        """The runs that can be named now: of a search those that try, and when all are done, those that follow."""
        runs = [run for block in self.blocks for run in _runs(block, score)]
        names = [run.name for run in runs]
        if twice := {name for name in names if names.count(name) > 1}:
            raise EtagError(
                f"the grid '{self.name}' has several runs that would be named {min(twice)}: name variants apart."
            )
        return runs


class Labeled(Protocol):
    """A run, or what is known of one."""

    @property
    def label(self) -> str:
        """What differs in the seed only has the same."""


L = TypeVar("L", bound=Labeled)


def by_label(found: Iterable[L]) -> dict[str, list[L]]:
    """Together what differs in the seed only."""
    groups: dict[str, list[L]] = {}
    for one in found:
        groups.setdefault(one.label, []).append(one)
    return groups


def _runs(block: Block, score: Score) -> Iterator[PlannedRun]:
    """One seed after the other, so that what is done of a grid is a whole comparison."""
    splits: list[str | None] = [*block.splits] if block.splits else [None]
    chosen: dict[str, dict[str, Any]] = {method: {} for method in block.methods}
    if block.search is not None:
        chosen = {}
        for method in block.methods:
            tried = list(_candidates(block, block.search, method))
            yield from (run for run, _ in tried)
            if (best := _best(tried, score)) is not None:
                chosen[method] = best
    for seed, split, method, variant in product(block.seeds, splits, chosen, block.variants):
        settings = block.settings | chosen[method] | block.variants[variant]
        yield _planned(block, method, split, seed, variant, settings)


def _candidates(block: Block, search: Search, method: str) -> Iterator[tuple[PlannedRun, dict[str, Any]]]:
    """The runs that try values, with these."""
    alone = {"data.first": search.classes, "data.held_out": search.held_out}
    for values in product(*search.over.values()):
        tried = dict(zip(search.over, values, strict=True))
        name = ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in tried.items())
        yield (
            _planned(block, method, search.split, block.seeds[0], name, block.settings | alone | tried, "search/"),
            tried,
        )


def _best(tried: Sequence[tuple[PlannedRun, dict[str, Any]]], score: Score) -> dict[str, Any] | None:
    """The values with the highest accuracy; None while some are not tried yet."""
    scores = [score(run.name) for run, _ in tried]
    known = [value for value in scores if value is not None]
    return tried[scores.index(max(known))][1] if len(known) == len(tried) else None


def _planned(
    block: Block, method: str, split: str | None, seed: int, variant: str, settings: dict[str, Any], below: str = ""
) -> PlannedRun:
    given = {"method": method, "seed": seed} | ({} if split is None else {"split": split}) | settings
    config = resolve(block.recipe, given, preset=block.preset)
    label = f"{below}{config.split}/{method}" + (f"-{variant}" if variant else "")
    words = ["etag", "run", block.recipe, *(["--preset", block.preset] if block.preset else [])]
    words += ["--method", method, *(["--split", split] if split else []), "--seed", str(seed)]
    words += [word for key, value in settings.items() for word in ("--set", f"{key}={_written(value)}")]
    return PlannedRun(f"{label}-seed{seed}", label, config, shlex.join(words))


def _written(value: Any) -> str:
    """As `--set` takes it."""
    return yaml.write({"value": value}).removeprefix("value:").removesuffix("\n").strip()
