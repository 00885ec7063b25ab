"""Cutting a data set into tasks."""

import json
import re
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from etag.core.errors import EtagError
from etag.core.scenario import Scenario, Task
from etag.data.images import MemoryImages
from etag.data.preprocess import Preprocess
from etag.data.source import SOURCES, DataOptions, Dataset


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
    order = seed if options.order is None else options.order
    count = len(dataset.classes)
    if order == "natural":
        return list(range(count))
    if isinstance(order, str):
        return _order_from_file(Path(order).expanduser(), dataset.classes)
    # the legacy generator on purpose: its permutations are the ones the community quotes by seed
    permutation = np.random.RandomState(order).permutation(count)
    if options.order_rule == "inverse":
        permutation = np.argsort(permutation)
    return [int(number) for number in permutation]


def _order_from_file(file: Path, classes: tuple[str, ...]) -> list[int]:
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise EtagError(f"the class order '{file}' can not be read: {error}.") from error
    try:
        entries = json.loads(text)
    except json.JSONDecodeError:
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
    dataset = SOURCES[options.name].open(options.path)
    order = class_order(dataset, options, seed)
    sizes = parse_split(split, len(order))
    order = order[: sum(sizes)]
    train = _resize(_relabel(dataset.train, order).first_per_class(options.train_per_class), options.size)
    test = _resize(_relabel(dataset.test, order).first_per_class(options.test_per_class), options.size)
    tasks, old = [], 0
    for index, new in enumerate(sizes):
        parts = [images.select(_rows(images, old, old + new)) for images in (train, test)]
        tasks.append(Task(index, old, new, parts[0], parts[1], base=sizes[0]))
        old += new
    channels, size = train.pixels.shape[1], train.pixels.shape[-1]
    names = tuple(dataset.classes[number] for number in order)
    flip = dataset.flip if options.flip is None else options.flip
    scenario = Scenario(options.name, split, tuple(tasks), names, channels, size)
    return scenario, Preprocess(dataset.mean, dataset.std, size, flip)


def _relabel(images: MemoryImages, order: list[int]) -> MemoryImages:
    """Only the classes in `order`, labelled by their position in it."""
    position = torch.full((max(int(images.labels.max()), *order) + 1,), -1)
    position[torch.tensor(order)] = torch.arange(len(order))
    labels = position[images.labels]
    rows = (labels >= 0).nonzero().flatten()
    return MemoryImages(images.pixels[rows], labels[rows])


def _rows(images: MemoryImages, first: int, end: int) -> torch.Tensor:
    return ((images.labels >= first) & (images.labels < end)).nonzero().flatten()


def _resize(images: MemoryImages, size: int | None) -> MemoryImages:
    if size is None or images.pixels.shape[-1] == size == images.pixels.shape[-2]:
        return images
    pixels = functional.interpolate(images.pixels, (size, size), mode="bilinear", antialias=True)
    return MemoryImages(pixels, images.labels)
