"""Cutting a data set into tasks."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from etag.core.errors import EtagError
from etag.core.scenario import Scenario, Task
from etag.data.images import MemoryImages
from etag.data.preprocess import Preprocess
from etag.data.source import SOURCES, DataOptions, Dataset, Images

# orders that are quoted by name, as data: never recomputed
ORDERS = {file.stem: file for file in (Path(__file__).parent / "orders").glob("*.json")}
SUBSET_SEED = 1993  # draws ImageNet-sub's classes, whatever the run's seed


def parse_split(name: str, classes: int | None = None) -> list[int]:
    """Classes per task: `b50-5x10` is 50 base classes, then 5 tasks of 10; `b0-4x25` is 4 tasks of 25."""
    match = re.fullmatch(r"b(\d+)-(\d+)x(\d+)", name)
    if match is None:
        raise EtagError(
            f"split '{name}' is not of the form bBASE-TASKSxCLASSES, such as b50-5x10 (50 base classes, then "
            "5 tasks of 10) or b0-4x25 (4 equal tasks of 25)."
        )
    base, tasks, step = map(int, match.groups())
    sizes = [base] * (base > 0) + [step] * tasks
    if step == 0 or tasks == 0:
        raise EtagError(f"split '{name}' has tasks without classes: each number after the base must be at least 1.")
    if classes is not None and sum(sizes) > classes:
        raise EtagError(f"split '{name}' needs {sum(sizes)} classes, but the data has only {classes}.")
    return sizes


def class_order(dataset: Dataset, options: DataOptions, seed: int) -> list[int]:
    """The source's class numbers in the order in which they arrive."""
    chosen = list(range(len(dataset.classes)))
    count = options.classes or dataset.used
    if count is not None or options.subset is not None:
        by_default = SUBSET_SEED if dataset.used else "natural"
        chosen = _arranged(by_default if options.subset is None else options.subset, dataset.classes)
        if isinstance(options.subset, str) and options.subset != "natural":
            count = options.classes or len(chosen)  # a list says itself how many
        if count is None:
            raise EtagError("data.subset draws some of the classes: say how many with data.classes.")
        if count > len(chosen):
            raise EtagError(
                f"{count} classes are to be used, but the data has {len(chosen)}: set data.classes to that or less."
            )
        chosen = sorted(chosen[:count])
    by_default = "natural" if dataset.ordered else seed
    order = by_default if options.order is None else options.order
    places = _arranged(order, tuple(dataset.classes[number] for number in chosen), options.order_rule)
    return [chosen[place] for place in places]


def _arranged(order: int | str, classes: tuple[str, ...], rule: str = "position") -> list[int]:
    """Positions of classes, as a seed, 'natural' or a file arranges them."""
    if order == "natural":
        return list(range(len(classes)))
    if isinstance(order, str):
        return _order_from_file(ORDERS.get(order) or Path(order).expanduser(), classes)
    # the legacy generator on purpose: its permutations are the ones the community quotes by seed
    permutation = np.random.RandomState(order).permutation(len(classes))
    return [int(number) for number in (np.argsort(permutation) if rule == "inverse" else permutation)]


def _order_from_file(file: Path, classes: tuple[str, ...]) -> list[int]:
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise EtagError(f"the class order '{file}' cannot be read: {error}.") from error
    try:
        entries = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        entries = lines if len(lines) > 1 else text.split()
    if not isinstance(entries, list) or not entries:
        raise EtagError(f"the class order '{file}' must list class names or numbers, one a line or as a JSON list.")
    numbers = {name: number for number, name in enumerate(classes)}
    numbers |= {str(number): number for number in range(len(classes)) if str(number) not in numbers}
    unknown = [str(entry) for entry in entries if str(entry) not in numbers]
    if unknown:
        raise EtagError(f"the class order '{file}' names '{unknown[0]}', which is no class of the data.")
    order = [numbers[str(entry)] for entry in entries]
    if len(set(order)) < len(order):
        raise EtagError(f"the class order '{file}' names a class twice.")
    return order


def build_scenario(options: DataOptions, split: str, seed: int) -> tuple[Scenario, Preprocess]:
    """Open the source and cut it; also how its images become network inputs."""
    dataset = SOURCES[options.name].open(options)
    order = class_order(dataset, options, seed)[: options.first]
    sizes = parse_split(split, len(order))
    _check_domains(dataset, order, sizes)
    order, size = order[: sum(sizes)], options.size or dataset.size
    side = round(size * dataset.margin)
    names = tuple(dataset.classes[number] for number in order)
    train = _prepared(dataset.train, len(dataset.classes), order, options.train_per_class, side)
    test = _prepared(dataset.test, len(dataset.classes), order, options.test_per_class, side)
    _check_all_there(names, train=train, test=test)
    train, test = _loaded(train, test, options)
    tasks, old = [], 0
    for index, new in enumerate(sizes):
        parts = [images.select(_rows(images.labels, old, old + new)) for images in (train, test)]
        if dataset.shared is None:
            tasks.append(Task(index, old, new, parts[0], parts[1], base=sizes[0]))
        else:
            again = [images.relabeled(images.labels - old) for images in parts]
            tasks.append(Task(index, new * (index > 0), new * (index == 0), again[0], again[1], base=sizes[0]))
        old += new
    tasks = [_judged_by(task, options.held_out) for task in tasks]
    names = dataset.shared or names
    flip = dataset.flip if options.flip is None else options.flip
    scenario = Scenario(options.name, split, tuple(tasks), names, len(dataset.mean), size)
    return scenario, Preprocess(dataset.mean, dataset.std, size, flip, options.resized_crop, dataset.crop)


def _judged_by(task: Task, share: float) -> Task:
    """A task that is tested on a share of its training images, if there is one."""
    trained, held_out = task.holding_out(share)
    return task if held_out is None else replace(trained, test=held_out)


def _check_domains(dataset: Dataset, order: list[int], sizes: list[int]) -> None:
    """Where all tasks show the same classes, each has all of them, in the same order."""
    if dataset.shared is not None and (set(sizes) != {len(dataset.shared)} or order != sorted(order)):
        count = len(dataset.shared)
        raise EtagError(
            f"data.domains shows the same {count} classes in every task: choose a split such as b0-5x{count}, and "
            "leave data.order and data.subset out."
        )


def _prepared(images: Images, classes: int, order: list[int], per_class: int | None, side: int) -> Images:
    """Only the classes in `order`, labeled by their position in it; so many images of each, of this size."""
    position = torch.full((classes,), -1)
    position[torch.tensor(order)] = torch.arange(len(order))
    rows = (position[images.labels] >= 0).nonzero().flatten()
    images = images.select(rows).relabeled(position[images.labels[rows]])
    return images.select(first_rows_per_class(images.labels, per_class)).resized(side)


def _check_all_there(names: tuple[str, ...], **parts: Images) -> None:
    """Each class has images to train and to test with; an accuracy over none would be no number."""
    for part, images in parts.items():
        counts = images.labels.bincount(minlength=len(names)).tolist()
        if empty := [name for name, count in zip(names, counts, strict=True) if not count]:
            raise EtagError(f"there are no images to {part} with of: {', '.join(empty)}.")


def first_rows_per_class(labels: torch.Tensor, count: int | None) -> torch.Tensor:
    """The rows of the first `count` of each label, in their order; all of them if None."""
    order = labels.argsort(stable=True)
    sizes = labels.bincount()
    starts = sizes.cumsum(0) - sizes
    place = torch.empty_like(order)  # how many of the same label come before
    place[order] = torch.arange(len(order)) - starts[labels[order]]
    return (place < (len(labels) if count is None else count)).nonzero().flatten()


def _loaded(train: Images, test: Images, options: DataOptions) -> tuple[Images, Images]:
    """Files in memory, if there is room for both parts."""
    if isinstance(train, MemoryImages) or isinstance(test, MemoryImages):
        return train, test
    if train.nbytes + test.nbytes > options.memory * 2**20:
        return train, test
    rows = torch.arange(len(train) + len(test))
    both = train.join([test]).in_memory()  # together, so that all files that cannot be read are told at once
    return both.select(rows[: len(train)]), both.select(rows[len(train) :])


def _rows(labels: torch.Tensor, first: int, end: int) -> torch.Tensor:
    return ((labels >= first) & (labels < end)).nonzero().flatten()
