"""The training that all methods of a comparison have in common: a grid refuses to compare methods that differ in it."""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from etag.core.errors import EtagError
from etag.core.text import listing
from etag.experiments.config import RunConfig

CHOSEN = ("train.lr", "train.base.lr")  # for each method; everything else of its training is the budget
SAMPLED_VIEWS = ("method.embedding.views_per_image", "method.embedding.image_share")
ELSEWHERE = {"path", "workers", "memory"}  # of the options of data: they do not change the images
NAMED, MAX_VALUE = 4, 60  # methods, and letters of a value, in an error message


def budget(config: RunConfig) -> dict[str, Any]:
    """By name: images, and how long and in which steps the solver is trained on them; with embedding distillation, also
    how many views of them it sees."""
    values = {f"data.{key}": value for key, value in config.data.model_dump(exclude=ELSEWHERE).items()}
    for index, tasks in enumerate(("the base task", "later tasks")):
        options = config.train.for_task(index).model_dump(exclude={"lr"})
        values |= {f"train.{key} in {tasks}": value for key, value in options.items()}
    embedding = getattr(config.method, "embedding", None)
    if embedding is not None:
        values |= {key: getattr(embedding, key.rpartition(".")[2]) for key in SAMPLED_VIEWS}
    return values


def check_equal(name: str, runs: Iterable[tuple[str, RunConfig, Collection[str]]]) -> None:
    """Raise an error if methods have different budgets in the same group of runs. `runs` are triples of the group, the
    configuration, and the keys that a variant sets: a variant that changes the budget says so by its name, and is not
    compared."""
    found: dict[tuple[str, str], dict[str, set[str]]] = {}  # by group and option: the values by method
    for group, config, own in runs:
        if any(key.startswith(("train.", "data.", *SAMPLED_VIEWS)) and key not in CHOSEN for key in own):
            continue
        for option, value in budget(config).items():
            found.setdefault((group, option), {}).setdefault(config.method.name, set()).add(repr(value))
    for (group, option), by_method in found.items():
        by_value: dict[str, list[str]] = {}
        for method, values in by_method.items():
            by_value.setdefault(" and ".join(sorted(values))[:MAX_VALUE], []).append(method)
        if len(set(map(frozenset, by_method.values()))) > 1:
            told = "; ".join(f"{value} for {listing(methods, NAMED)}" for value, methods in by_value.items())
            raise EtagError(
                f"the grid '{name}' compares methods on {group} that are not trained alike: {option} is {told}. Give "
                "all methods the same, or make the difference a variant with a name of its own."
            )


def check_equal_search(name: str, trials: Counter[str]) -> None:
    """Raise an error if some methods have more trials than others."""
    by_number: dict[int, list[str]] = {}
    for method, number in trials.items():
        by_number.setdefault(number, []).append(method)
    if len(by_number) > 1:
        told = "; ".join(f"{number} for {listing(methods, NAMED)}" for number, methods in sorted(by_number.items()))
        raise EtagError(
            f"the grid '{name}' searches settings with different numbers of trials: {told}. Give every method the same "
            "number, under 'search'."
        )
