"""What a step costs at a late task, and what a class costs on disk: eTag with up to 200 tasks.

    OMP_NUM_THREADS=1 python benchmarks/flat_cost.py [--width 16] [--out docs/images/flat-cost.png]

eTag is brought to each of several tasks (its networks grow as they do in a run; they are not trained on the way), the
same batches of random images are learned there, and the tasks take turns. Printed are the times of a solver step and
of a generator step, and the bytes that are stored; the last table extrapolates to 10,000 classes. Run it while
nothing else runs.
"""

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from lightning_fabric import Fabric

from etag.core.options import TrainOptions
from etag.core.random import Placement, Stream
from etag.core.scenario import Task
from etag.core.work import Phase
from etag.data.images import MemoryImages
from etag.data.preprocess import Preprocess
from etag.engine.engine import Engine
from etag.engine.runtime import Runtime
from etag.methods.base import Context
from etag.methods.etag import ETag, EtagOptions
from etag.models.backbone import ModelOptions
from etag.report.style import BLUE, GREEN, VERMILION

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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("docs/images/flat-cost.png"))
    options = parser.parse_args()

    engine = Engine(Runtime(Fabric(accelerator="cpu", devices=1)))
    at = {tasks: phases_at(tasks, options) for tasks in TASKS}
    seconds: dict[tuple[int, str], list[float]] = {(tasks, name): [] for tasks in TASKS for name in at[tasks][0]}
    for turn in range(options.rounds + 1):  # the first one warms up
        for tasks, (phases, _) in at.items():
            for name, phase in phases.items():
                began = time.perf_counter()
                engine.train(phase)
                if turn:
                    seconds[tasks, name].append((time.perf_counter() - began) / phase.steps)

    least = {key: 1000 * min(times) for key, times in seconds.items()}
    middle = {key: 1000 * statistics.median(times) for key, times in seconds.items()}
    print(f"ResNet-18 of width {options.width}, {options.size} px, batch {options.batch}, {NEW} classes a task\n")
    print("| task | classes | solver step, ms: minimum (median) | to task 2 | generator step, ms | stored, bytes |")
    print("|---|---|---|---|---|---|")
    for tasks in TASKS:
        solver, generator = least[tasks, "solver"], least[tasks, "generator"]
        print(
            f"| {tasks} | {NEW * tasks} | {solver:.2f} ({middle[tasks, 'solver']:.2f}) | "
            f"{solver / least[2, 'solver']:.3f} | {generator:.2f} | {sum(at[tasks][1].values()):,} |"
        )
    first, last = at[TASKS[0]][1], at[TASKS[-1]][1]
    added = NEW * (TASKS[-1] - TASKS[0])
    per_class = {name: (last[name] - first[name]) / added for name in first}
    print("\nbytes a class adds: " + ", ".join(f"{name} {count:.0f}" for name, count in per_class.items()))
    print("\n| classes | stored, bytes | of these for the classes |\n|---|---|---|")
    for classes in (100, 1_000, 10_000):
        grown = sum(per_class.values()) * (classes - NEW * TASKS[0])
        print(f"| {classes:,} | {sum(first.values()) + grown:,.0f} | {grown:,.0f} |")
    draw(at, least, options.out)


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
    right.set(xlabel="task", ylabel="megabytes", title=f"What is stored, {NEW} classes a task")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.set_xticks(TASKS, TASKS)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    right.set_xticks([2, 50, 100, 200], [2, 50, 100, 200])
    figure.savefig(out, dpi=110)
    print(f"\nfigure: {out}")


if __name__ == "__main__":
    main()
