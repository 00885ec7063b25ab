"""Where eTag spends its time: a solver step, a teacher's pass, a generator's epoch, the evaluation.

    OMP_NUM_THREADS=1 python benchmarks/profile_etag.py [--width 64] [--size 32] [--batch 64] [--device cpu|cuda]

Each piece is run as the engine runs it; the pieces take turns, and then each is run once under PyTorch's profiler.
Operators are summed into kinds by their own time; what is left of the median wall time is Python and the engine. On a
GPU the kinds are of its kernels' time, and what is left is the time it waited.
"""

import statistics
from collections.abc import Callable
from dataclasses import replace

import torch
from torch.profiler import ProfilerActivity, profile

from engine_overhead import second_task
from etag.core.work import DataPass, Phase
from etag.evaluation.evaluate import predictions_pass
from measure import alternate, conditions, counted, engine, lowest, parser, print_table

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


def shares(work: Callable[[], None], wall: float, cuda: bool) -> dict[str, str]:
    """The share of the wall seconds that each kind of operator takes, in percent."""
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])
    with profile(activities=activities) as profiled:
        work()
    kinds = dict.fromkeys(KINDS, 0.0)
    for event in profiled.key_averages():
        spent = event.self_device_time_total if cuda else event.self_cpu_time_total
        if kind := kind_of(event.key):
            kinds[kind] += spent / 1e6 / wall
    rest = max(0.0, 1 - sum(kinds.values()))
    return {kind: f"{100 * share:.0f} %" for kind, share in (kinds | {"Python and waiting": rest}).items()}


def batches_of(work: Phase | DataPass) -> Callable[[], None]:
    def read() -> None:
        for _ in work.batches.epoch(0):
            pass

    return read


def main() -> None:
    arguments = parser(__doc__, width=64, size=32, batch=64, steps=2, rounds=3)
    arguments.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    options = arguments.parse_args()
    ours, cuda = engine(options.device), options.device == "cuda"
    images = options.batch * options.steps
    pieces: dict[str, Callable[[], object]] = {}
    for begun in (1, 2):
        method, tasks = second_task(images, options.size, options.batch, options.width, begun, ours.runtime.placement)
        plan = method.phases(tasks[-1])
        solver = next(plan)
        label = "base task" if begun == 1 else "later task"
        pieces[f"solver, {label}"] = lambda phase=solver: ours.train(phase)
    pieces["its batches alone"] = batches_of(solver)
    views = solver.module._views(next(solver.batches.epoch(0)))
    pieces["teacher's pass, one step"] = lambda: method.teacher.targets(views, solver.module._teacher_need)
    data_pass = plan.send({})
    pieces["features, one pass"] = lambda: ours.run_pass(data_pass)
    generator = plan.send(ours.run_pass(data_pass))
    short = replace(generator, training=generator.training.model_copy(update={"epochs": 1}))
    pieces[f"generator, an epoch of {counted(short.steps, 'step')}"] = lambda: ours.train(short)
    first, *others = (task.test for task in tasks)
    batches = method.pass_batches("evaluation", first.join(others))
    evaluation = predictions_pass(batches, method.classifier(), method.task_sizes)
    pieces["evaluation"] = lambda: ours.run_pass(evaluation)

    def finished(work: Callable[[], object]) -> Callable[[], None]:
        return lambda: (work(), torch.cuda.synchronize() if cuda else None)

    pieces = {name: finished(work) for name, work in pieces.items()}
    times = alternate(pieces, options.rounds)
    setting = f"ResNet-18 of width {options.width}, {options.size} px, batch {options.batch}, {options.steps} steps"
    print(f"{setting}, {options.device}, {conditions(options, ours)}:\n")
    rows = [
        {"piece": name, "ms: minimum (median)": lowest([1000 * spent for spent in times[name]], 0)}
        | shares(work, statistics.median(times[name]), cuda)
        for name, work in pieces.items()
    ]
    print_table(rows)


if __name__ == "__main__":
    main()
