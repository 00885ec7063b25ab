"""The method and the task of a lesson, and how long it will take."""

from collections.abc import Callable
from dataclasses import replace

import torch

from etag.app.folders import LessonImages
from etag.core.options import RuntimeOptions
from etag.core.scenario import Task
from etag.engine.runtime import Runtime, launch
from etag.experiments.estimate import work_of_task
from etag.learner.config import UNKNOWN_COUNT, create_method
from etag.learner.learner import print_nothing
from etag.learner.model_directory import ModelDirectory
from etag.learner.versions import ModelInfo
from etag.methods.base import AnyMethod

Work = list[tuple[str, float]]  # phases and passes in order, each with its seconds


def lesson_task(
    runtime: Runtime,
    directory: ModelDirectory,
    about: ModelInfo,
    images: LessonImages,
    print_line: Callable[[str], None] = print_nothing,
) -> tuple[AnyMethod, Task]:
    """The method as it is so far, and the lesson as its next task."""
    config = about.learner_config()
    if directory.exists():
        method, _ = directory.load_method(runtime.placement)
        classes = about.expected_classes or UNKNOWN_COUNT  # known while a run is resumed
        method.context = replace(method.context, train=config.train, classes=classes)
    else:
        method = create_method(config, runtime.placement, about.preprocess, channels=about.channels)
        if loaded := method.load_weights():
            print_line(str(loaded))
    old, new = len(about.classes), 0 if images.update else len(images.names)
    known = (*about.classes, *images.names)  # for an update, index() finds the existing label
    places = torch.tensor([known.index(name) for name in images.names])
    task = Task(
        index=len(about.task_sizes),
        num_old=old,
        num_new=new,
        train=replace(images.train, labels=places[images.train.labels]),
        test=replace(images.held_out, labels=places[images.held_out.labels]),
        num_base=about.task_sizes[0] if about.task_sizes else new,
    )
    if new:
        method.check([*about.task_sizes, new])
    return method, task


def lesson_work(directory: ModelDirectory, about: ModelInfo, images: LessonImages, options: RuntimeOptions) -> Work:
    """What a lesson will do and how long each part will take, measured on a few real training steps."""
    measured: list[Work] = []

    def measure(runtime: Runtime) -> None:
        method, task = lesson_task(runtime, directory, about, images)
        measured.append(work_of_task(runtime, method, task, len(about.history) if images.update else None))

    launch(options.model_copy(update={"devices": 1}), measure)
    return measured[0]
