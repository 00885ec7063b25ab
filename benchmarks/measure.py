"""What the benchmarks share: their options, rounds in which contenders take turns, and Markdown tables."""

import argparse
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from typing import Any, TypeVar

import torch
from lightning_fabric import Fabric

from etag.core.options import RuntimeOptions
from etag.engine.engine import Engine
from etag.engine.runtime import Runtime, resolve_precision

K = TypeVar("K", bound=Hashable)


def parser(text: str | None, **numbers: int) -> argparse.ArgumentParser:
    """A parser of whole numbers with these defaults; `text` is the docstring of the script."""
    arguments = argparse.ArgumentParser(description=(text or "").splitlines()[0])
    for name, default in numbers.items():
        arguments.add_argument(f"--{name}", type=int, default=default)
    return arguments


def engine(accelerator: str = "cpu", **options: Any) -> Engine:
    """An engine in this process; a precision `auto` is resolved."""
    chosen = resolve_precision(RuntimeOptions(accelerator=accelerator, **options))
    return Engine(Runtime(Fabric(accelerator=accelerator, devices=1, precision=chosen.precision), chosen))


def alternate(
    contenders: Mapping[K, Callable[[], object]],
    rounds: int,
    reset: Callable[[], object] = lambda: None,
    warm_up: int = 1,
) -> dict[K, list[float]]:
    """The seconds of every contender in every round. They take turns, and rounds before the others, which warm up, do
    not count. `reset` is called before each of them and is not measured."""
    times: dict[K, list[float]] = {name: [] for name in contenders}
    for number in range(-warm_up, rounds):
        for name, work in contenders.items():
            reset()
            began = time.perf_counter()
            work()
            if number >= 0:
                times[name].append(time.perf_counter() - began)
    return times


def alternate_processes(
    build: Callable[..., Callable[[], object]], names: Sequence[str], rounds: int, *args: object
) -> dict[str, list[float]]:
    """As `alternate`, but each contender has a process of its own, where `build(name, *args)` returns its work."""
    with ExitStack() as stack:
        contenders = {}
        for name in names:
            pool = ProcessPoolExecutor(1, get_context("spawn"), _prepare, (build, name, *args))
            stack.enter_context(pool)
            contenders[name] = lambda pool=pool: pool.submit(_run).result()
        return alternate(contenders, rounds)


def _prepare(build: Callable[..., Callable[[], object]], *args: object) -> None:
    global _work
    _work = build(*args)


def _run() -> None:
    _work()


def lowest(values: Sequence[float], digits: int = 2) -> str:
    """The minimum, and the median in parentheses."""
    return f"{min(values):.{digits}f} ({statistics.median(values):.{digits}f})"


def row(setting: str, times: Mapping[str, Sequence[float]], images: int | None = None) -> dict[str, str]:
    """A row of a table, by column: images per second of every contender, or seconds if no number of images is given,
    and how many times as long as each of the others the first one takes."""
    first, *others = times
    cells = {"setting": setting}
    for name, own in times.items():
        if images is None:
            cells[f"{name}, s: minimum (median)"] = lowest(own)
        else:
            best, middle = images / min(own), images / statistics.median(own)
            cells[f"{name}, images/s: best (median)"] = f"{best:.1f} ({middle:.1f})"
    for other in others:
        least = min(times[first]) / min(times[other])
        middle = statistics.median(times[first]) / statistics.median(times[other])
        cells[f"time, {first} / {other}: minima (medians)"] = f"{least:.3f} ({middle:.3f})"
    return cells


def print_table(rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows of the same columns as a Markdown table."""
    for cells in (rows[0], ["---"] * len(rows[0]), *(cells.values() for cells in rows)):
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def conditions(options: argparse.Namespace, used: Engine | None = None) -> str:
    """The numbers of threads and of rounds, in words; with the precision of the engine, if all contenders use it."""
    words = f"{counted(torch.get_num_threads(), 'thread')}, {counted(options.rounds, 'round')}"
    return words if used is None else f"{used.runtime.options.precision}, {words}"


def counted(number: int, thing: str) -> str:
    """Such as "1 thread" and "2 threads"."""
    return f"{number} {thing}{'s' * (number != 1)}"
