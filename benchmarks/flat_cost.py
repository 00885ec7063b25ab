"""What a step costs at a late task, and what a class costs on disk: eTag with up to 200 tasks.

    OMP_NUM_THREADS=1 python benchmarks/flat_cost.py [--width 16] [--out docs/images/flat-cost.png]

eTag is brought to each of several tasks (its networks grow as they do in a run; they are not trained on the way), the
same batches of random images are trained there, and the tasks take turns. Printed are the times of a solver step and
of a generator step, and the bytes that are stored; the last table extrapolates to 10,000 classes. Run it while
nothing else runs.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from etag.core.options import TrainOptions
from etag.core.random import Placement, Stream
from etag.core.scenario import Task
from etag.core.work import Phase
from etag.data.images import MemoryImages
from etag.data.preprocess import Preprocess
from etag.methods.base import Context
from etag.methods.etag import ETag, EtagOptions
from etag.models.backbone import ModelOptions
from etag.report.style import BLUE, GREEN, VERMILION
from measure import alternate, conditions, engine, lowest, parser, print_table

TASKS = (2, 5, 10, 25, 50, 100, 200)
NEW = 5  # classes of every task


def stored(method: ETag) -> dict[str, int]:
    """Bytes of what is stored, by part."""
    solver = {"backbone": method.solver.backbone, "head": method.solver.head, "auxiliaries": method.solver.auxiliaries}
    parts = solver | {"generator": method.generator.network}
    return {name: sum(value.nbytes for value in part.state_dict().values()) for name, part in parts.items()}


def phases_at(tasks: int, options: argparse.Namespace) -> tuple[dict[str, Phase], dict[str, int]]:
    """The solver's and the generator's phase at a task (the first one is 1), and what is stored then."""
    images = options.batch * options.steps
    pixels = torch.randint(0, 256, (images, 3, options.size, options.size), dtype=torch.uint8)
    context = Context(
        channels=3,
        size=options.size,
        classes=NEW * tasks + NEW,
        stream=Stream.root(0),
        placement=Placement(),
        model=ModelOptions(width=options.width),
        train=TrainOptions(epochs=1, batch_size=options.batch),
        preprocess=Preprocess((0.5,) * 3, (0.25,) * 3, options.size, flip=True),
    )
    method = ETag(EtagOptions(name="etag", generator={"feature_passes": 1, "train": {"epochs": 1}}), context)
    for index in range(tasks):
        data = MemoryImages(pixels, NEW * index + torch.arange(images) % NEW)
        task = Task(index, NEW * index, NEW, data, data, num_base=NEW)
        method.begin_task(task)
    plan = method.phases(task)
    solver = next(plan)
    data_pass = plan.send({})
    features = method.solver.backbone.feature_size
    found = {"features": torch.rand(images, features), "labels": data.labels}
    assert data_pass.name == "features"
    generator = plan.send(found)
    short = replace(generator, training=generator.training.model_copy(update={"batch_size": options.batch}))
    return {"solver": solver, "generator": short}, stored(method)


def main() -> None:
    arguments = parser(__doc__, width=16, size=16, batch=24, steps=4, rounds=7)
    arguments.add_argument("--out", type=Path, help="file for a figure; none is drawn by default")
    options = arguments.parse_args()

    ours = engine()
    at = {tasks: phases_at(tasks, options) for tasks in TASKS}
    phases = {(tasks, name): phase for tasks, (both, _) in at.items() for name, phase in both.items()}
    contenders = {key: lambda phase=phase: ours.train(phase) for key, phase in phases.items()}
    times = alternate(contenders, options.rounds)
    ms = {key: [1000 * spent / phases[key].steps for spent in own] for key, own in times.items()}
    setting = f"ResNet-18 of width {options.width}, {options.size} px, batch {options.batch}, {NEW} classes per task"
    print(f"{setting}, {conditions(options, ours)}:\n")
    first, last = at[TASKS[0]][1], at[TASKS[-1]][1]
    print_table(
        [
            {
                "task": tasks,
                "classes": NEW * tasks,
                "solver step, ms: minimum (median)": lowest(ms[tasks, "solver"]),
                "ratio to task 2": f"{min(ms[tasks, 'solver']) / min(ms[TASKS[0], 'solver']):.3f}",
                "generator step, ms": lowest(ms[tasks, "generator"]),
                "stored, bytes": f"{sum(at[tasks][1].values()):,}",
            }
            for tasks in TASKS
        ]
    )
    added = NEW * (TASKS[-1] - TASKS[0])
    per_class = {name: (last[name] - first[name]) / added for name in first}
    parts = ", ".join(f"{name} {count:.0f}" for name, count in per_class.items())
    print(f"\nBytes that each class adds: {parts}.\n")
    grown = {classes: sum(per_class.values()) * (classes - NEW * TASKS[0]) for classes in (100, 1_000, 10_000)}
    print_table(
        [
            {
                "classes": f"{classes:,}",
                "stored, bytes": f"{sum(first.values()) + more:,.0f}",
                "of these for the classes": f"{more:,.0f}",
            }
            for classes, more in grown.items()
        ]
    )
    if options.out:
        draw(at, {key: min(own) for key, own in ms.items()}, options.out)


def draw(
    at: dict[int, tuple[dict[str, Phase], dict[str, int]]], least: dict[tuple[int, str], float], out: Path
) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), constrained_layout=True)
    for name, color, mark in (("solver", BLUE, "o"), ("generator", GREEN, "s")):
        left.plot(TASKS, [least[tasks, name] for tasks in TASKS], color=color, marker=mark, label=f"{name} step")
    left.set(xscale="log", xlabel="task", ylabel="milliseconds", title="Time of a training step")
    left.set_ylim(bottom=0)
    bytes_ = [sum(stored.values()) / 1e6 for _, stored in at.values()]
    right.plot(TASKS, bytes_, color=VERMILION, marker="o", label="stored in all")
    growing = [(stored["head"] + stored["generator"]) / 1e6 for _, stored in at.values()]
    right.plot(TASKS, growing, color=GREEN, marker="s", label="head and generator")
    right.set(xlabel="task", ylabel="megabytes", title=f"What is stored, {NEW} classes per task")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.set_xticks(TASKS, TASKS)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    right.set_xticks([2, 50, 100, 200], [2, 50, 100, 200])
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    main()
