"""What a run will take, from a few steps that are really made."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from etag.core.scenario import Task
from etag.core.work import Checkpointer, DataPass, Phase, Plan
from etag.data.scenario import build_scenario
from etag.engine.engine import Engine
from etag.engine.runtime import Runtime, launch
from etag.experiments.config import RunConfig
from etag.experiments.store import create_method, parameter_counts
from etag.methods.base import Method

BATCHES = 4  # measured a phase, the first of which warms up


@dataclass(frozen=True)
class _Cost:
    """Of a phase or sweep: seconds and arithmetic operations an image that passes through it, and how many do."""

    per_pass: float
    passes_per_image: float
    passes: int = 0  # instead, for a length in steps
    operations_per_pass: float = 0.0

    def count(self, images: int) -> float:
        return self.passes or self.passes_per_image * images

    def seconds(self, images: int) -> float:
        return self.per_pass * self.count(images)

    def operations(self, images: int) -> float:
        return self.operations_per_pass * self.count(images)


@dataclass
class Estimate:
    """Seconds a task, arithmetic operations, parameters by part, and bytes while training."""

    costs: list[list[_Cost]] = field(default_factory=list)  # of the base task, and of a later one
    seconds: list[float] = field(default_factory=list)
    operations: float = 0.0
    parameters: dict[str, int] = field(default_factory=dict)
    network_bytes: int = 0
    data_bytes: int = 0

    def report(self) -> str:
        """For people."""
        parts = ", ".join(f"{name} {count:,}" for name, count in self.parameters.items())
        first, *later = self.seconds
        tasks = f"base task {_time(first)}"
        if later:
            tasks += f", then {len(later)} of {_time(sum(later) / len(later))} each"
        return (
            f"parameters at the end: {sum(self.parameters.values()):,} ({parts})\n"
            f"memory: about {_size(self.network_bytes)} for networks and optimizer, {_size(self.data_bytes)} for "
            "images if they are kept in memory, and the activations of a batch\n"
            f"time: about {_time(sum(self.seconds))} ({tasks}) on this machine, evaluation not counted"
        )


def estimate(config: RunConfig, like: Estimate | None = None) -> Estimate:
    """Measure on small pieces of the first two tasks, on one device, or take the costs of a like run; count up."""
    found = Estimate(like.costs if like is not None else [])
    launch(config.runtime.model_copy(update={"devices": 1}), _estimate, config, found)
    return found


def _estimate(runtime: Runtime, config: RunConfig, found: Estimate) -> None:
    scenario, preprocess = build_scenario(config.data, config.split, config.seed)
    method = create_method(
        config, runtime.placement, preprocess, channels=scenario.channels, classes=len(scenario.classes)
    )
    method.check(scenario.classes_per_task)
    for task, images in zip(scenario, scenario.images_given(method.card.all_data), strict=True):
        # later tasks cost what the second does, image for image
        if task.index < 2 and len(found.costs) == task.index:
            given = scenario.given(task, method.card.all_data)
            found.costs.append(_costs(runtime, method, given, method.whole_task))
        costs = found.costs[min(task.index, 1)]
        found.seconds.append(sum(cost.seconds(images) for cost in costs))
        found.operations += sum(cost.operations(images) for cost in costs)
        found.data_bytes = max(found.data_bytes, images * scenario.channels * scenario.size**2)
    method.rebuild(scenario.classes_per_task)
    found.parameters = parameter_counts(method)
    # weights, their gradients and Adam's two moments, and the frozen copies, in four bytes each
    found.network_bytes = 4 * 5 * sum(found.parameters.values())


def seconds_of_task(runtime: Runtime, method: Method, task: Task, plan: Callable[[Task], Plan]) -> float:
    """What the work planned for a task will take. The method is of no use afterwards."""
    return sum(cost.seconds(len(task.train)) for cost in _costs(runtime, method, task, plan))


def _costs(runtime: Runtime, method: Method, task: Task, plan: Callable[[Task], Plan]) -> list[_Cost]:
    """Measure each piece of the work on a few of the task's images."""
    piece = _piece(task, BATCHES * method.context.train.for_task(task.index).batch_size)
    watch = _Stopwatch(runtime, len(piece.train))
    watch.execute(plan(piece))
    return watch.costs


def _piece(task: Task, images: int) -> Task:
    """A task of so many of its images, of all its classes."""
    rows = torch.linspace(0, len(task.train) - 1, min(images, len(task.train))).long()
    return replace(task, train=task.train.select(rows))


class _Stopwatch(Engine):
    """Does a plan's work for a few steps a phase, and notes what each piece of it costs."""

    def __init__(self, runtime: Runtime, images: int) -> None:
        super().__init__(runtime)
        self._images = images  # that a sweep passes over
        self.costs: list[_Cost] = []

    def run_pass(self, data_pass: DataPass) -> dict[str, Tensor]:
        start = time.perf_counter()
        found = super().run_pass(data_pass)
        self.costs.append(_Cost((time.perf_counter() - start) / (data_pass.epochs * self._images), data_pass.epochs))
        return found

    def train(self, phase: Phase, checkpointer: Checkpointer | None = None) -> None:
        size, steps = phase.training.batch_size, min(BATCHES - 1, len(phase.batches))
        with FlopCounterMode(display=False) as counter:  # the first step warms up, and is counted
            super().train(_of_length(phase, 1), checkpointer)
        start = time.perf_counter()
        super().train(_of_length(phase, steps), checkpointer)
        per_pass = (time.perf_counter() - start) / (steps * size)
        passes = (phase.training.steps or 0) * size
        self.costs.append(_Cost(per_pass, phase.training.epochs, passes, counter.get_total_flops() / size))


def _of_length(phase: Phase, steps: int) -> Phase:
    return replace(phase, training=phase.training.model_copy(update={"steps": steps}))


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _size(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB" if count < 2**30 else f"{count / 2**30:,.1f} GiB"
