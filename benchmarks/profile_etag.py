"""Where eTag spends its time: a solver step, a teacher's pass, a generator's epoch, the evaluation.

    OMP_NUM_THREADS=1 python benchmarks/profile_etag.py [--width 64] [--size 32] [--batch 64] [--device cpu|cuda]

Each piece is run as the engine runs it, once to warm up and once under PyTorch's profiler. Operators are summed into
kinds by their own time; what is left of the wall time is Python and the engine. On a GPU the kinds are of its
kernels' time, and what is left is the time it waited. Prints a Markdown table, as docs/performance.md has it.
"""

import argparse
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime

import torch
from lightning_fabric import Fabric
from torch.profiler import ProfilerActivity, profile

from engine_overhead import second_task
from etag.core.random import Placement
from etag.core.work import DataPass, Phase
from etag.engine.engine import Engine
from etag.engine.runtime import Runtime
from etag.evaluation.evaluate import predictions_pass

KINDS = {  # the first that fits
    "convolution, backward": ("convolution_backward", "conv_bwd", "dgrad", "wgrad"),
    "convolution": ("convolution", "conv"),
    "linear": ("addmm", "mm", "linear", "gemm"),
    "BatchNorm": ("batch_norm",),
    "optimizer": ("Optimizer", "_fused_", "_foreach"),
    "activation": ("threshold", "relu", "clamp_min"),
    "other operators": ("aten::", "void ", "Memcpy", "Memset"),
}


def kind_of(name: str) -> str | None:
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), None)


def table_row(name: str, work: Callable[[], None], device: str) -> tuple[str, float, dict[str, float]]:
    """Wall milliseconds, and those of each kind."""
    cuda = device == "cuda"
    wait = torch.cuda.synchronize if cuda else lambda: None
    work()
    wait()
    began = time.perf_counter()
    work()
    wait()
    wall = 1000 * (time.perf_counter() - began)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])
    with profile(activities=activities) as profiled:
        work()
        wait()
    kinds = dict.fromkeys(KINDS, 0.0)
    for event in profiled.key_averages():
        spent = event.self_device_time_total if cuda else event.self_cpu_time_total
        if kind := kind_of(event.key):
            kinds[kind] += spent / 1000
    return name, wall, kinds


def batches_of(work: Phase | DataPass) -> Callable[[], None]:
    def read() -> None:
        for _ in work.batches.epoch(0):
            pass

    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    fabric = Fabric(accelerator=options.device, devices=1)
    placement = Placement(fabric.device)
    images = options.batch * options.steps
    engine = Engine(Runtime(fabric))
    rows = []

    def add(name: str, work: Callable[[], None]) -> None:
        rows.append(table_row(name, work, options.device))

    for begun in (1, 2):
        method, tasks = second_task(images, options.size, options.batch, options.width, begun, placement)
        plan = method.phases(tasks[-1])
        solver = next(plan)
        label = "base task" if begun == 1 else "later task"
        add(f"solver, {label}", lambda phase=solver: engine.train(phase))
    add("its batches alone", batches_of(solver))
    batch = next(solver.batches.epoch(0))
    views = solver.module._views(batch)
    add("teacher's pass, a step", lambda: method.teacher.targets(views, solver.module._teacher_need))
    data_pass = plan.send({})
    add("features, a pass", lambda: engine.run_pass(data_pass))
    generator = plan.send(engine.run_pass(data_pass))
    steps = generator.steps // generator.training.epochs
    short = Phase(
        generator.name,
        generator.module,
        generator.batches,
        generator.groups,
        generator.training.model_copy(update={"epochs": 1}),
    )
    add(f"generator, an epoch of {steps} steps", lambda: engine.train(short))
    first, *others = (task.test for task in tasks)
    batches = method.pass_batches("evaluation", first.join(others))
    evaluation = predictions_pass(batches, method.classifier(), method.task_sizes)
    add("evaluation", lambda: engine.run_pass(evaluation))

    print(
        f"ResNet-18 of width {options.width}, {options.size} px, batch {options.batch}, {options.steps} steps; "
        f"{torch.get_num_threads()} thread(s), {options.device}, torch {torch.__version__}, "
        f"{platform.machine()}, {datetime.now(UTC):%Y-%m-%d}\n"
    )
    print("| piece | ms | " + " | ".join(KINDS) + " | Python and waiting |")
    print("|---" * (len(KINDS) + 3) + "|")
    for name, wall, kinds in rows:
        shares = [f"{100 * spent / wall:.0f} %" for spent in kinds.values()]
        rest = max(0.0, 100 * (1 - sum(kinds.values()) / wall))
        print(f"| {name} | {wall:.0f} | " + " | ".join(shares) + f" | {rest:.0f} % |")


if __name__ == "__main__":
    main()
