"""What a model of 1,000 or 10,000 classes and a million images costs: time, memory and disk.

    python benchmarks/scale.py [--methods ridge fecam etag] [--classes 1000] [--images 50] [--lesson 100] [--size 128]

Each method learns for real: lessons of `--lesson` classes, features drawn around class means in place of images, as
`etag learn` would have them from a frozen EfficientNet-Lite0. Three runs (half of the classes, all of them, and all of
them with twice the images) give the cost per image, per class, and the rest; larger numbers of both are computed from
these. What the features themselves cost is measured apart, on random images. One thread; run it while
nothing else runs.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric

from etag.app.lesson_config import first_lesson
from etag.core.memory import images_at_a_time, reuse_freed_memory
from etag.core.random import Placement
from etag.core.scenario import Task
from etag.data.images import Features
from etag.engine.runtime import Runtime
from etag.learner.config import create_method
from etag.learner.learner import Learner, LearnOptions
from etag.learner.model_directory import ModelDirectory
from measure import parser, print_table

MEASURED = ("seconds", "memory", "disk")
SPREAD = 3.0  # of class means, as a multiple of the deviation within a class


def lesson_features(classes: int, first: int, images: int, size: int) -> Features:
    """Features that are not negative, around a mean for each class."""
    generator = torch.Generator().manual_seed(first)
    labels = (first + torch.arange(classes)).repeat_interleave(images)
    means = SPREAD * torch.rand(classes, size, generator=generator)
    rows = means.repeat_interleave(images, 0) + torch.randn(len(labels), size, generator=generator)
    return Features(rows.relu_(), torch.arange(len(labels)), labels)


def learn(name: str, classes: int, images: int, lesson: int, side: int) -> dict[str, float]:
    """Learn all classes; seconds, the most memory used (bytes), and the size of the model directory (bytes)."""
    torch.set_num_threads(1)
    reuse_freed_memory()
    about, _ = first_lesson(lesson * images, {"method": name, "data.size": side}, recipe="learn-pretrained")
    runtime = Runtime(Fabric(accelerator="cpu", devices=1))
    method = create_method(about.learner_config(), runtime.placement, about.preprocess, channels=3)
    size, seconds = method.solver.backbone.output_size, 0.0
    with tempfile.TemporaryDirectory() as folder, ModelDirectory(Path(folder) / "model").locked():
        learner = Learner(method, runtime, ModelDirectory(Path(folder) / "model"), about)
        for index, first in enumerate(range(0, classes, lesson)):
            train, test = (lesson_features(lesson, first, count, size) for count in (images, 1))
            names = tuple(str(first + number) for number in range(lesson))
            began = time.perf_counter()
            learner.learn(
                Task(index, first, lesson, train, test, num_base=lesson), LearnOptions(names, keep_versions=1)
            )
            seconds += time.perf_counter() - began
        disk = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    memory = 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "memory": memory, "disk": disk}


@torch.inference_mode()
def seconds_of_features(side: int, images: int = 256) -> float:
    """Seconds per image of the backbone."""
    torch.set_num_threads(1)
    reuse_freed_memory()
    about, _ = first_lesson(images, {"method": "ridge", "data.size": side}, recipe="learn-pretrained")
    method = create_method(about.learner_config(), Placement(), about.preprocess, channels=3)
    backbone, batch = method.solver.backbone.eval(), images_at_a_time(images, side, torch.device("cpu"))
    inputs = torch.randn(batch, 3, side, side).to(memory_format=torch.channels_last)
    backbone(inputs)
    began = time.perf_counter()
    for _ in range(-(-images // batch)):
        backbone(inputs)
    return (time.perf_counter() - began) / (batch * -(-images // batch))


def in_process(*words: object) -> Any:
    """What one measurement prints in a process of its own, so that its memory is its own."""
    command = [sys.executable, __file__, "--only", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def costs(runs: dict[tuple[int, int], dict[str, float]]) -> dict[str, np.ndarray]:
    """From runs by (classes, images): what is the same for all, what a class adds, and what an image adds."""
    sizes = np.array([[1, classes, images] for classes, images in runs], float)
    return {key: np.linalg.solve(sizes, [run[key] for run in runs.values()]).clip(min=0) for key in MEASURED}


def row(
    name: str, kind: str, classes: int, images: int, values: dict[str, float], features: float
) -> dict[str, object]:
    return {
        "method": name,
        "classes": f"{classes:,}",
        "images": f"{images:,}",
        "": kind,
        "features, minutes": f"{features * images / 60:,.1f}",
        "the rest, minutes": f"{values['seconds'] / 60:,.1f}",
        "memory, GiB": f"{values['memory'] / 2**30:,.1f}",
        "disk, MiB": f"{values['disk'] / 2**20:,.0f}",
    }


def main() -> None:
    arguments = parser(__doc__, classes=1000, images=50, lesson=100, size=128)
    arguments.add_argument("--methods", nargs="+", default=["ridge", "fecam", "etag"])
    arguments.add_argument("--only", nargs="+", help=argparse.SUPPRESS)  # one measurement
    options = arguments.parse_args()
    if options.only:
        name, *numbers = options.only
        measured = seconds_of_features(*map(int, numbers)) if name == "features" else learn(name, *map(int, numbers))
        print(json.dumps(measured))
        return
    classes, images = options.classes, options.images
    features = in_process("features", options.size)
    rows = []
    for name in options.methods:
        runs = {}
        for count, each in ((classes // 2, images), (classes, images), (classes, 2 * images)):
            runs[count, count * each] = in_process(name, count, each, options.lesson, options.size)
        rows += [row(name, "measured", count, total, values, features) for (count, total), values in runs.items()]
        fitted = costs(runs)
        for count in (classes, 10 * classes):
            values = {key: float(cost @ [1, count, 1_000_000]) for key, cost in fitted.items()}
            rows.append(row(name, "computed", count, 1_000_000, values, features))
    print_table(rows)


if __name__ == "__main__":
    main()
