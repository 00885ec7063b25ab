"""Grids: a YAML file that names methods, splits, variants and seeds, and the runs of all their combinations."""

import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from etag.core.errors import EtagError
from etag.core.options import Options, dotted, file_error
from etag.core.reading import read_text
from etag.core.text import brief
from etag.data.source import Seed
from etag.experiments import recipes, yaml_files
from etag.experiments.budget import check_equal, check_equal_search
from etag.experiments.config import RunConfig, resolve
from etag.experiments.plugins import check_loaded
from etag.learner.pretrained import RUN
from etag.methods.registry import METHODS

Score = Callable[[str], float | None]  # the accuracy of the run with this name; None while it is not done
FAILED = float("-inf")  # the score of a run that failed
ADAPTED = "adapted/"  # the folder of runs that fine-tune a backbone
SEARCH = "search/"  # the folder of runs that try settings
FOR_REPORTS = ("summary", "paper", "notice")  # keys of a grid's file that only a report reads
BENCH_MARKER = "# written by `etag bench`\n"  # what follows this line is not part of the grid
MAX_RUNS = 5_000  # of a grid; its file names all of them, and YAML has a limit too
NOT_IN_NAMES = re.compile(r"[/\\\x00-\x1f\x7f]")  # the name of a run is that of its folder
MAX_NAME = 120  # letters of a variant's name


def _checked_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """By dotted key; what has a list of its own in a block is refused."""
    flat = dotted(settings)
    for key, own in (("method", "methods"), ("method.name", "methods"), ("split", "splits"), ("seed", "seeds")):
        if key in flat:
            raise ValueError(f"'{key}' cannot be a setting: list its values under '{own}'")
    return flat


Settings = Annotated[dict[str, Any], AfterValidator(_checked_settings)]  # by dotted key

Values = Annotated[list[Any], Field(min_length=1)]


class Search(Options):
    """Values to try on the classes of the base task alone, evaluated on images held out of its training data."""

    over: dict[str, Values] = Field(
        default_factory=dict, description="values by dotted key; all combinations are tried"
    )
    methods: dict[str, dict[str, Values]] = Field(
        default_factory=dict, description="more values, or others, by method; those of ewc are tried for eewc, too"
    )
    settings: Settings = Field(default_factory=dict, description="other settings of the trials, such as fewer epochs")

    split: str = Field(description="how the base task's classes are split for trying, such as b4-2x2")
    classes: int = Field(description="the number of classes of the base task", gt=1)
    held_out: float = Field(0.2, gt=0, lt=1, description="share of each class's training images to evaluate on")

    @model_validator(mode="after")
    def _has_values(self) -> Self:
        if not self.over and not any(self.methods.values()):
            raise ValueError("there is nothing to try: list values under 'over' or 'methods'")
        return self

    def values(self, method: str) -> dict[str, list[Any]]:
        """What is tried for a method: values by dotted key."""
        own = [self.methods.get(section, {}) for section, _ in METHODS[method].recipe_sections]
        return {key: values for part in (self.over, *own) for key, values in part.items()}

    def trials(self, method: str) -> int:
        """How many runs that takes; none if nothing is to be chosen."""
        return math.prod(map(len, self.values(method).values())) if self.values(method) else 0


class Adaptation(Options):
    """Fine-tuning on the classes of the base task: one backbone per seed, with which all runs of a block start."""

    classes: int = Field(description="the number of classes of the base task", gt=1)
    settings: Settings = Field(default_factory=dict, description="of the fine-tuning, by dotted key")


class Block(Options):
    """One recipe with every combination of these methods, splits, seeds and variants."""

    recipe: str
    preset: str | None = None
    methods: list[str] = Field(min_length=1)
    splits: list[str] | None = Field(None, min_length=1, description="null: the recipe's own split")
    seeds: list[Seed] = Field([0, 1, 2], min_length=1)
    settings: Settings = Field(default_factory=dict, description="options by dotted key")
    variants: dict[str, dict[str, Any]] = Field(
        {"": {}}, min_length=1, description="by name: other settings; '' is the plain method"
    )
    search: Search | None = None
    adaptation: Adaptation | None = None

    @property
    def count(self) -> int:
        """The number of its runs, with those that they depend on."""
        tried = 0 if self.search is None else sum(map(self.search.trials, self.methods))
        adapted = 0 if self.adaptation is None else len(self.seeds)
        runs = len(self.methods) * len(self.seeds) * len(self.splits or [""]) * len(self.variants)
        return adapted + tried + runs

    @model_validator(mode="after")
    def _searched_methods_are_in_the_block(self) -> Self:
        known = {section for method in self.methods for section, _ in METHODS[method].recipe_sections}
        if self.search is not None and (others := self.search.methods.keys() - known):
            raise ValueError(f"search.methods has values for '{min(others)}', which is none of the block's methods")
        return self

    @field_validator("variants")
    @classmethod
    def _dotted_variants(cls, variants: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name in variants:
            if NOT_IN_NAMES.search(name) or len(name) > MAX_NAME:
                raise ValueError(f"the variant {brief(name)} needs a short name that can be part of a folder's name")
        return {name: dotted(settings) for name, settings in variants.items()}


@dataclass(frozen=True)
class PlannedRun:
    """A run of a grid. Its name is its directory below the grid's."""

    name: str
    label: str  # the name without the seed
    config: RunConfig
    command: str  # does the same run on its own
    own: frozenset[str] = frozenset()  # the keys that its variant sets


@dataclass(frozen=True)
class Grid:
    """The content of a grid's file."""

    name: str
    text: str
    blocks: tuple[Block, ...]
    packaged: bool = False  # whether it comes with the package, so that its name is enough to find it
    plugins: tuple[str, ...] = ()

    @classmethod
    def load(cls, name: str, plugins: Sequence[str] = ()) -> "Grid":
        """Read a grid by name or path, or as it was before `etag bench` added to it; every run loads `plugins`."""
        path = recipes.grid_file(name)
        whole = read_text(path, yaml_files.MAX_BYTES)
        content = yaml_files.parse_mapping(whole, str(path))
        text, written_by_bench, _ = whole.partition(BENCH_MARKER)
        own_name = _name(content.pop("bench", None), path.stem) if written_by_bench else path.stem
        text = _appendable(text, content)
        if not isinstance(content.get("notice", ""), str):
            raise EtagError(f"{path}: 'notice' must be a text, but is {brief(content['notice'])}.")
        for key in FOR_REPORTS:
            content.pop(key, None)
        blocks = content.pop("runs", [{}])
        if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            raise EtagError(f"{path}: 'runs' must be a list of blocks, each with its methods, seeds and the like.")
        try:
            checked = [Block.model_validate(content | block) for block in blocks]
        except ValidationError as error:
            raise file_error(error, str(path)) from None
        if (count := sum(block.count for block in checked)) > MAX_RUNS:
            raise EtagError(f"{path} describes {count:,} runs, and a grid may have {MAX_RUNS:,}: make it smaller.")
        for block in checked:
            check_loaded(block.settings.get("plugins", []))  # before the list of the command line replaces this one
        if plugins:
            checked = [b.model_copy(update={"settings": b.settings | {"plugins": [*plugins]}}) for b in checked]
        return cls(own_name, text, tuple(checked), name in recipes.grids(), tuple(plugins))

    def recorded(self, command: str, runs: Sequence[PlannedRun], precision: str) -> str:
        """The grid's file for its results: its own text, then the key `bench` with name, command, precision and planned
        runs."""
        added = {"name": self.name, "command": command, "precision": precision, "runs": [run.name for run in runs]}
        return f"{self.text.rstrip()}\n{BENCH_MARKER}{yaml_files.write({'bench': added})}"

    def all_runs(self) -> list[PlannedRun]:
        """Every run, with placeholders for what other runs are to find: the values of a search are those of its first
        candidate, and a backbone that is to be adapted is the recipe's. An error if methods are trained unequally."""
        runs = self._plan(lambda _: 0.0, with_adapted=False)
        compared = [run for run in runs if not run.name.startswith(ADAPTED)]
        check_equal(self.name, [(run.label.rpartition("/")[0], run.config, run.own) for run in compared])
        trials: dict[tuple[str, ...], Counter[str]] = {}  # of the methods that are compared on the same splits
        for block in self.blocks:
            if block.search is not None:
                counts = trials.setdefault((block.recipe, *(block.splits or [])), Counter())
                counts.update({method: number for method in block.methods if (number := block.search.trials(method))})
        for counts in trials.values():
            check_equal_search(self.name, counts)
        return runs

    def plan(self, score: Score) -> list[PlannedRun]:
        """The runs that can be configured now: those that depend on other runs only once these are done."""
        return self._plan(score, with_adapted=True)

    def _plan(self, score: Score, with_adapted: bool) -> list[PlannedRun]:
        """Trials first, then all blocks' runs of the first seed, then of the next: an unfinished grid holds complete
        comparisons."""
        seeds = [seed for block in self.blocks for seed in block.seeds]
        runs = [run for block in self.blocks for run in _runs(block, score, with_adapted)]
        runs.sort(key=lambda run: -1 if run.name.startswith(SEARCH) else seeds.index(run.config.seed))
        runs = [run for place, run in enumerate(runs) if not (run.name.startswith(ADAPTED) and run in runs[:place])]
        if twice := [name for name, times in Counter(run.name for run in runs).items() if times > 1]:
            raise EtagError(
                f"the grid '{self.name}' has several runs with the name {min(twice)}: give their variants "
                "different names."
            )
        return runs


def _name(added: Any, default: str) -> str:
    """The name that `etag bench` wrote into a file; it becomes the name of a folder, so it must be a plain one."""
    name = added.get("name") if isinstance(added, dict) else None
    return name if isinstance(name, str) and re.fullmatch(r"\w[\w.+-]*", name) else default


def _appendable(text: str, content: dict[str, Any]) -> str:
    """The text if a key can be written after its end, else the same content written anew, without comments."""
    try:
        if yaml_files.parse(f"{text.rstrip()}\nbench: {{}}", "") == content | {"bench": {}}:
            return text
    except EtagError:
        pass
    return yaml_files.write(content)


def _runs(block: Block, score: Score, with_adapted: bool) -> Iterator[PlannedRun]:
    """The runs of a block, seed by seed."""
    splits: list[str | None] = [*block.splits] if block.splits else [None]
    chosen: dict[str, dict[str, Any]] = {method: {} for method in block.methods}
    if block.search is not None:
        chosen = {}
        for method in block.methods:
            if not block.search.values(method):  # it has nothing to choose
                chosen[method] = {}
                continue
            candidates = list(_candidates(block, block.search, method))
            yield from (run for run, _ in candidates)
            if (best := _best(candidates, score)) is not None:
                chosen[method] = best
    for seed in block.seeds:
        adapted: dict[str, Any] = {}
        if block.adaptation is not None:
            source = _adapting(block, block.adaptation, seed)
            yield source
            if score(source.name) in (None, FAILED):
                continue
            if with_adapted:
                adapted = {"model.weights": f"{RUN}{source.name}"}
        for split, method, variant in product(splits, chosen, block.variants):
            settings = block.settings | adapted | chosen[method] | block.variants[variant]
            run = _planned(block, method, split, seed, variant, settings)
            yield replace(run, own=frozenset(block.variants[variant]))


def _adapting(block: Block, adaptation: Adaptation, seed: int) -> PlannedRun:
    """The run that fine-tunes the backbone."""
    own = {key: value for key, value in block.settings.items() if not key.startswith("method.")}
    settings = own | adaptation.settings | {"data.first_classes": adaptation.classes}
    return _planned(block, "fine", f"b0-1x{adaptation.classes}", seed, "", settings, ADAPTED)


def _candidates(block: Block, search: Search, method: str) -> Iterator[tuple[PlannedRun, dict[str, Any]]]:
    """The runs that try values, each with its values."""
    base_task = {"data.first_classes": search.classes, "data.held_out": search.held_out}
    over = search.values(method)
    for values in product(*over.values()):
        tried = dict(zip(over, values, strict=True))
        variant = ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in tried.items())
        variant = NOT_IN_NAMES.sub("_", variant)[:MAX_NAME]
        settings = block.settings | base_task | search.settings | dotted(tried)
        yield _planned(block, method, search.split, block.seeds[0], variant, settings, SEARCH), dotted(tried)


def _best(candidates: Sequence[tuple[PlannedRun, dict[str, Any]]], score: Score) -> dict[str, Any] | None:
    """The values with the highest accuracy; None while some have not been tried."""
    scores = [score(run.name) for run, _ in candidates]
    known = [value for value in scores if value is not None]
    return candidates[scores.index(max(known))][1] if len(known) == len(candidates) else None


def _planned(
    block: Block, method: str, split: str | None, seed: int, variant: str, settings: dict[str, Any], prefix: str = ""
) -> PlannedRun:
    given = {"method": method, "seed": seed} | ({} if split is None else {"split": split}) | settings
    config = resolve(block.recipe, deepcopy(given), preset=block.preset)  # a copy: runs must not share mappings
    label = f"{prefix}{config.split}/{method}" + (f"-{variant}" if variant else "")
    words = ["etag", "run", block.recipe, *(["--preset", block.preset] if block.preset else [])]
    words += ["--method", method, *(["--split", split] if split else []), "--seed", str(seed)]
    words += [word for file in config.plugins for word in ("--plugin", file)]
    words += [
        word
        for key, value in settings.items()
        if key != "plugins"
        for word in ("--set", f"{key}={yaml_files.inline(value)}")
    ]
    return PlannedRun(f"{label}-seed{seed}", label, config, shlex.join(words))
