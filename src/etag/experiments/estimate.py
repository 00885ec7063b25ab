"""What a run will take, measured on a few real training steps."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from etag.core.scenario import ImageSet, Task
from etag.core.text import data_size, duration
from etag.core.work import Checkpointer, DataPass, Phase
from etag.data.scenario import build_scenario
from etag.engine.engine import Engine
from etag.engine.runtime import Runtime, launch
from etag.experiments.config import RunConfig
from etag.learner.config import create_method, parameter_counts
from etag.learner.learner import Learner
from etag.methods.base import AnyMethod

BATCHES = 4  # measured per phase, the first of which warms up


@dataclass(frozen=True)
class _Cost:
    """What a phase or pass costs: seconds and operations per image, and how often each image is used."""

    seconds_per_image: float
    epochs: float
    images_in_all: int = 0  # used in all epochs, where the length is given in steps
    operations_per_image: float = 0.0
    name: str = ""  # of the phase or pass

    def count(self, images: int) -> float:
        return self.images_in_all or self.epochs * images

    def seconds(self, images: int) -> float:
        return self.seconds_per_image * self.count(images)

    def operations(self, images: int) -> float:
        return self.operations_per_image * self.count(images)


@dataclass
class Estimate:
    """Seconds per task, arithmetic operations, parameters by part, and bytes while training."""

    costs: list[list[_Cost]] = field(default_factory=list)  # of the base task, and of a later one
    seconds: list[float] = field(default_factory=list)
    operations: float = 0.0
    parameters: dict[str, int] = field(default_factory=dict)
    network_bytes: int = 0
    data_bytes: int = 0

    def report(self) -> str:
        """The estimate in a few lines for people."""
        parts = ", ".join(f"{name} {count:,}" for name, count in self.parameters.items())
        first, *later = self.seconds
        tasks = f"base task {duration(first)}"
        if later:
            tasks += f", then {len(later)} of {duration(sum(later) / len(later))} each"
        return (
            f"parameters at the end: {sum(self.parameters.values()):,} ({parts})\n"
            f"memory: about {data_size(self.network_bytes)} for networks and optimizer, {data_size(self.data_bytes)} "
            "for images if they are held in memory, and the activations of a batch\n"
            f"time: about {duration(sum(self.seconds))} ({tasks}) on this machine, without evaluation"
        )


def estimate(config: RunConfig, similar: Estimate | None = None) -> Estimate:
    """Measure a few batches of the first two tasks on one device, or use the costs of a similar run; add them up."""
    expected = Estimate(similar.costs if similar is not None else [])
    launch(config.runtime.model_copy(update={"devices": 1}), _estimate, config, expected)
    return expected


def _estimate(runtime: Runtime, config: RunConfig, expected: Estimate) -> None:
    scenario, preprocess = build_scenario(config.data, config.split, config.seed, config.model.images)
    method = create_method(
        config, runtime.placement, preprocess, channels=scenario.channels, classes=len(scenario.classes)
    )
    method.check(scenario.new_classes_per_task)
    for task, images in zip(scenario, scenario.training_image_counts(method.info.all_data), strict=True):
        # later tasks cost the same per image as the second
        if task.index < 2 and len(expected.costs) == task.index:
            expected.costs.append(_costs(runtime, method, scenario.training_task(task, method.info.all_data)))
        costs = expected.costs[min(task.index, 1)]
        expected.seconds.append(sum(cost.seconds(images) for cost in costs))
        expected.operations += sum(cost.operations(images) for cost in costs)
        expected.data_bytes = max(expected.data_bytes, images * scenario.channels * scenario.size**2)
    method.build_after(scenario.new_classes_per_task)
    expected.parameters = parameter_counts(method)
    # weights, gradients, Adam's two averages, and the frozen copies, four bytes each
    expected.network_bytes = 4 * 5 * sum(expected.parameters.values())


def work_of_task(runtime: Runtime, method: AnyMethod, task: Task, update: int | None = None) -> list[tuple[str, float]]:
    """The phases and passes of a task that is learned and then evaluated on its test images, in order, each with the
    seconds that it will take. The method cannot be used afterwards. `update` is as for `Learner.train`."""
    stopwatch = _Stopwatch(runtime)
    learner = Learner(method, runtime, engine=stopwatch)
    batch_size = method.context.train.for_task(task.index).batch_size
    some = replace(task, train=_some(task.train, batch_size))
    stopwatch.images = len(some.train)
    learner.train(some, update_number=update)
    work = [(cost.name, cost.seconds(len(task.train))) for cost in stopwatch.costs]
    if len(task.test):
        stopwatch.costs.clear()
        some = replace(task, test=_some(task.test, batch_size))
        stopwatch.images = len(some.test)
        learner.evaluate([some])
        work += [(cost.name, cost.seconds(len(task.test))) for cost in stopwatch.costs]
    return work


def _costs(runtime: Runtime, method: AnyMethod, task: Task) -> list[_Cost]:
    """Measure each phase and pass on a few of the task's images."""
    some = replace(task, train=_some(task.train, method.context.train.for_task(task.index).batch_size))
    stopwatch = _Stopwatch(runtime, len(some.train))
    Learner(method, runtime, engine=stopwatch).train(some)
    return stopwatch.costs


def _some(images: ImageSet, batch_size: int) -> ImageSet:
    """A few batches of the images, evenly spread, so that all classes occur."""
    count = min(BATCHES * batch_size, len(images))
    return images.select(torch.linspace(0, len(images) - 1, count).long())


class _Stopwatch(Engine):
    """Carries out a plan for a few steps per phase, and records what each phase and pass costs."""

    def __init__(self, runtime: Runtime, images: int = 0) -> None:
        super().__init__(runtime)
        self.images = images  # in one pass
        self.costs: list[_Cost] = []

    def run_pass(self, data_pass: DataPass) -> dict[str, Tensor]:
        start = time.perf_counter()
        result = super().run_pass(data_pass)
        seconds, epochs = time.perf_counter() - start, data_pass.epochs
        self.costs.append(_Cost(seconds / (epochs * self.images), epochs, name=data_pass.name))
        return result

    def stream(self, data_pass: DataPass) -> Iterator[dict[str, Tensor]]:
        start = time.perf_counter()
        results = list(super().stream(data_pass))
        self.costs.append(_Cost((time.perf_counter() - start) / self.images, 1, name=data_pass.name))
        yield from results

    def train(self, phase: Phase, checkpointer: Checkpointer | None = None) -> None:
        size, steps = phase.training.batch_size, min(BATCHES - 1, len(phase.batches))
        with FlopCounterMode(display=False) as counter:  # the first step warms up, and its operations are counted
            super().train(_of_length(phase, 1), checkpointer)
        start = time.perf_counter()
        super().train(_of_length(phase, steps), checkpointer)
        per_pass = (time.perf_counter() - start) / (steps * size)
        passes = (phase.training.steps or 0) * size
        operations = counter.get_total_flops() / size
        self.costs.append(_Cost(per_pass, phase.training.epochs, passes, operations, phase.name))


def _of_length(phase: Phase, steps: int) -> Phase:
    return replace(phase, training=phase.training.model_copy(update={"steps": steps}))
