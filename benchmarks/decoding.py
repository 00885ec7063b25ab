"""Does decoding overlap with training? A step on image files decoded ahead, against the same from memory.

    OMP_NUM_THREADS=1 python benchmarks/decoding.py FOLDER [--size 224] [--width 16] [--workers 1]

FOLDER is an image folder (train/ and val/, or one folder). Epochs of eTag's base task alternate between the two; the
ratio of minima and of medians is printed. The workers keep up while one step takes longer than they need to decode a
batch: both times are printed, so one sees how far away that limit is.
"""

import argparse
import statistics
import time

import torch
from lightning_fabric import Fabric

from etag.core.options import TrainOptions
from etag.core.random import Placement, Stream
from etag.data.scenario import build_scenario
from etag.data.source import DataOptions
from etag.engine.engine import Engine
from etag.engine.runtime import Runtime
from etag.methods.base import Context
from etag.methods.registry import METHODS
from etag.models.backbone import ModelOptions


def epoch_of(options: argparse.Namespace, memory: int):
    """One epoch of the base task of all classes, as a function to call."""
    data = DataOptions(name="folder", path=options.folder, size=options.size, memory=memory, workers=options.workers)
    scenario, preprocess = build_scenario(data, f"b0-1x{options.classes}", 0)
    context = Context(
        channels=3,
        size=scenario.size,
        classes=options.classes,
        stream=Stream.root(0),
        placement=Placement(),
        model=ModelOptions(width=options.width),
        train=TrainOptions(epochs=1, batch_size=options.batch),
        preprocess=preprocess,
    )
    cls = METHODS[options.method]
    method, task = cls(cls.Options(name=options.method), context), scenario.tasks[0]
    method.begin_task(task)
    engine = Engine(Runtime(Fabric(accelerator="cpu", devices=1)))
    return (lambda: engine.train(next(method.phases(task)))), task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--method", default="etag")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    from_memory, _ = epoch_of(options, memory=1 << 20)
    from_files, task = epoch_of(options, memory=0)
    steps = len(task.train) // options.batch
    seconds = {"memory": [], "files": []}
    for turn in range(options.rounds + 1):  # the first one warms up
        for name, run in (("memory", from_memory), ("files", from_files)):
            began = time.perf_counter()
            run()
            if turn:
                seconds[name].append((time.perf_counter() - began) / steps)
    began = time.perf_counter()
    rows = torch.split(torch.arange(steps * options.batch), options.batch)
    for _ in task.train.read(rows):
        pass
    decoding = (time.perf_counter() - began) / steps
    for name, times in seconds.items():
        print(f"{name:>7}: minimum {min(times):.3f} s, median {statistics.median(times):.3f} s a step")
    print(f"decoding alone, {options.workers} worker(s): {decoding:.3f} s a batch")
    memory, files = seconds["memory"], seconds["files"]
    keep_up = "keep up" if decoding < min(memory) else "cannot keep up"
    print(
        f"files / memory: {min(files) / min(memory):.3f} (minima), "
        f"{statistics.median(files) / statistics.median(memory):.3f} (medians); the workers {keep_up}; "
        f"{options.batch / min(files):.1f} images/s, {options.method}, width {options.width}, {options.size} px"
    )


if __name__ == "__main__":
    main()
