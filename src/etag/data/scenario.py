"""Building a scenario: a data set in a class order, split into tasks."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from etag.core.errors import EtagError
from etag.core.files import require_regular_file
from etag.core.images import ImageFormat, Resize
from etag.core.random import Stream
from etag.core.scenario import Scenario, Task
from etag.core.text import brief
from etag.data.images import Images, load_into_memory
from etag.data.preprocess import Preprocess
from etag.data.rows import drawn_rows_per_class, first_rows_per_class
from etag.data.source import SOURCES, DataOptions, Dataset

# class orders that the literature refers to by name, stored as files so that they never change
ORDERS = {file.stem: file for file in (Path(__file__).parent / "orders").glob("*.json")}
SUBSET_SEED = 1993  # selects the classes of ImageNet-sub, independent of the run's seed


def parse_split(name: str, classes: int | None = None) -> list[int]:
    """Return the classes per task: `b50-5x10` is 50 base classes, then 5 tasks of 10; `b0-4x25` is 4 tasks of 25."""
    match = re.fullmatch(r"b(\d{1,6})-(\d{1,6})x(\d{1,6})", name, re.ASCII)
    if match is None:
        raise EtagError(
            f"split {brief(name)} does not have the form bBASE-TASKSxCLASSES, such as b50-5x10 (50 base classes, then "
            "5 tasks of 10) or b0-4x25 (4 equal tasks of 25), with numbers below a million."
        )
    base, tasks, step = map(int, match.groups())
    if step == 0 or tasks == 0:
        raise EtagError(
            f"split '{name}' has no tasks, or tasks without classes: both numbers after the base must be at least 1."
        )
    if classes is not None and base + tasks * step > classes:
        raise EtagError(
            f"split '{name}' needs {base + tasks * step} classes, but the data has only {classes}: choose a smaller "
            "split."
        )
    return [base] * (base > 0) + [step] * tasks


def class_order(dataset: Dataset, options: DataOptions, seed: int) -> list[int]:
    """Return the source's class numbers in the order in which tasks introduce them."""
    chosen = list(range(len(dataset.classes)))
    count = options.classes or dataset.default_classes
    if count is not None or options.subset is not None:
        default_subset = SUBSET_SEED if dataset.default_classes else "natural"
        chosen = _arranged(default_subset if options.subset is None else options.subset, dataset.classes)
        if isinstance(options.subset, str) and options.subset != "natural":
            count = options.classes or len(chosen)  # without data.classes, use all classes that the file lists
        if count is None:
            raise EtagError("data.subset selects some of the classes: set data.classes to their number.")
        if count > len(chosen):
            raise EtagError(
                f"{count} classes were requested, but the data has {len(chosen)}: set data.classes to that or less."
            )
        chosen = sorted(chosen[:count])
    default_order = "natural" if dataset.ordered else seed
    order = default_order if options.order is None else options.order
    positions = _arranged(order, tuple(dataset.classes[number] for number in chosen), options.order_rule)
    return [chosen[position] for position in positions]


def _arranged(order: int | str, classes: tuple[str, ...], rule: str = "position") -> list[int]:
    """Return positions in `classes`, ordered by a seed, 'natural', a known order's name, or a file."""
    if order == "natural":
        return list(range(len(classes)))
    if isinstance(order, str):
        return _order_from_file(ORDERS.get(order) or Path(os.path.expanduser(order)), classes)
    # the legacy generator on purpose: published class orders are its permutations, given by seed
    permutation = np.random.RandomState(order).permutation(len(classes))
    return [int(number) for number in (np.argsort(permutation) if rule == "inverse" else permutation)]


def _order_from_file(file: Path, classes: tuple[str, ...]) -> list[int]:
    try:
        require_regular_file(file)
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise EtagError(f"the class order '{file}' cannot be read: {error}.") from error
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):  # a number of thousands of digits is a ValueError
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        entries = lines if len(lines) > 1 else text.split()
    if not isinstance(entries, list) or not entries:
        raise EtagError(f"the class order '{file}' must list class names or numbers, one per line or as a JSON list.")
    numbers = {name: number for number, name in enumerate(classes)}
    numbers |= {str(number): number for number in range(len(classes)) if str(number) not in numbers}
    unknown = [str(entry) for entry in entries if str(entry) not in numbers]
    if unknown:
        raise EtagError(f"the class order '{file}' lists '{unknown[0]}', which is not a class of the data.")
    order = [numbers[str(entry)] for entry in entries]
    if len(set(order)) < len(order):
        raise EtagError(f"the class order '{file}' lists a class twice: remove one of the two.")
    return order


def build_scenario(
    options: DataOptions, split: str, seed: int, images: ImageFormat | None = None
) -> tuple[Scenario, Preprocess]:
    """Load the data source and split it into tasks; return the scenario and its image preprocessing. `images` is what
    pre-trained weights expect; without it, mean and deviation are those of the source."""
    dataset = SOURCES[options.name].open(options)
    order = class_order(dataset, options, seed)[: options.first_classes]
    sizes = parse_split(split, len(order))
    _check_domains(dataset, order, sizes)
    order, size = order[: sum(sizes)], options.size or (dataset.size if images is None else images.size)
    flip = dataset.flip if options.flip is None else options.flip
    preprocess = Preprocess(dataset.mean, dataset.std, size, flip, options.resized_crop, dataset.augment)
    if images is not None:
        if len(images.mean) != len(dataset.mean):
            raise EtagError(
                f"the weights expect images of {len(images.mean)} channels, and '{options.name}' has "
                f"{len(dataset.mean)}: choose other weights or other data."
            )
        preprocess = replace(preprocess, **images.model_dump(exclude={"size"}))
    resize = replace(preprocess.resize, side=round(size * dataset.stored_ratio))
    names = tuple(dataset.classes[number] for number in order)
    train = dataset.train
    if options.draw:  # by the images alone: the order of the classes does not change which of them
        generator = Stream.root(seed).torch_generator("training images")
        train = train.select(drawn_rows_per_class(train.labels, options.train_per_class, generator))
    train = _prepared(train, len(dataset.classes), order, options.train_per_class, resize)
    test = _prepared(dataset.test, len(dataset.classes), order, options.test_per_class, resize)
    _check_no_class_is_empty(names, train=train, test=test)
    train, test = load_into_memory(train, test, options.memory)
    tasks, old = [], 0
    for index, new in enumerate(sizes):
        parts = [
            images.select(((images.labels >= old) & (images.labels < old + new)).nonzero().flatten())
            for images in (train, test)
        ]
        if dataset.domain_classes is None:
            tasks.append(Task(index, old, new, parts[0], parts[1], num_base=sizes[0]))
        else:
            # domain-incremental: only the first task brings classes, the others have images of the same
            same = [replace(images, labels=images.labels - old) for images in parts]
            tasks.append(Task(index, new if index else 0, 0 if index else new, same[0], same[1], num_base=sizes[0]))
        old += new
    for index, task in enumerate(tasks):
        remaining, held_out = task.holding_out(options.held_out)
        tasks[index] = task if held_out is None else replace(remaining, test=held_out)
    names = dataset.domain_classes or names
    return Scenario(options.name, split, tuple(tasks), names, len(dataset.mean), size), preprocess


def _check_domains(dataset: Dataset, order: list[int], sizes: list[int]) -> None:
    """Raise an EtagError unless every task of domain-incremental data has all shared classes, in their order."""
    if dataset.domain_classes is not None and (set(sizes) != {len(dataset.domain_classes)} or order != sorted(order)):
        count = len(dataset.domain_classes)
        raise EtagError(
            f"data.domains=true gives every task the same {count} classes: choose a split such as b0-5x{count}, and "
            "do not set data.order or data.subset."
        )


def _prepared(images: Images, classes: int, order: list[int], per_class: int | None, resize: Resize) -> Images:
    """Return the first `per_class` images of each class in `order`, resized, labeled by their position in it."""
    position = torch.full((classes,), -1)
    position[torch.tensor(order)] = torch.arange(len(order))
    rows = (position[images.labels] >= 0).nonzero().flatten()
    images = replace(images.select(rows), labels=position[images.labels[rows]])
    return images.select(first_rows_per_class(images.labels, per_class)).resized(resize)


def _check_no_class_is_empty(names: tuple[str, ...], **parts: Images) -> None:
    """Raise an EtagError if a class has no images to train or to test with: its accuracy would be undefined."""
    for part, images in parts.items():
        counts = images.labels.bincount(minlength=len(names)).tolist()
        if empty := [name for name, count in zip(names, counts, strict=True) if not count]:
            raise EtagError(f"these classes have no images to {part} with: {', '.join(empty)}; add images.")
