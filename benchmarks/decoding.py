"""Does decoding overlap with training? A step on image files decoded ahead, against the same from memory.

    OMP_NUM_THREADS=1 python benchmarks/decoding.py FOLDER [--size 224] [--width 16] [--workers 1]

FOLDER is an image folder (train/ and val/, or one folder). Epochs of eTag's base task alternate between the two, and
with decoding alone. The workers keep up while they decode more images per second than are trained from memory.
"""

import argparse
from collections.abc import Callable

import torch

from etag.core.options import TrainOptions
from etag.core.random import Placement, Stream
from etag.core.scenario import Task
from etag.data.scenario import build_scenario
from etag.data.source import DataOptions
from etag.engine.engine import Engine
from etag.methods.base import Context
from etag.methods.registry import METHODS
from etag.models.backbone import ModelOptions
from measure import alternate, conditions, counted, engine, parser, print_table, row


def epoch_of(options: argparse.Namespace, ours: Engine, memory: int) -> tuple[Callable[[], None], Task]:
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
    return (lambda: ours.train(next(method.phases(task)))), task


def main() -> None:
    arguments = parser(__doc__, classes=10, size=224, width=16, batch=32, workers=1, rounds=3)
    arguments.add_argument("folder")
    arguments.add_argument("--method", default="etag")
    options, ours = arguments.parse_args(), engine()
    from_memory, _ = epoch_of(options, ours, memory=1 << 20)
    from_files, task = epoch_of(options, ours, memory=0)
    images = len(task.train) // options.batch * options.batch

    def decode() -> None:
        for _ in task.train.read(torch.split(torch.arange(images), options.batch)):
            pass

    times = alternate({"files": from_files, "memory": from_memory, "decoding alone": decode}, options.rounds)
    setting = f"{options.method}, width {options.width}, {options.size} px, batch {options.batch}"
    print_table([row(f"{setting}, {counted(options.workers, 'worker')}, {conditions(options, ours)}", times, images)])


if __name__ == "__main__":
    main()
