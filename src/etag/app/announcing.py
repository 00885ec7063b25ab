"""What a lesson is about to do, in words."""

from collections.abc import Callable

import torch

from etag.app.folders import LessonImages
from etag.app.lesson_task import Work
from etag.engine.lesson_progress import time_left
from etag.experiments.config import RunConfig
from etag.learner.versions import ModelInfo, Name
from etag.methods.registry import METHODS


def announce(
    about: ModelInfo,
    config: RunConfig,
    images: LessonImages,
    work: Work,
    print_line: Callable[[str], None],
    this_should: str = "this should",
) -> None:
    """Print what will be done, and how long it should take on this machine."""
    known, model = len(about.classes), about.learner_config().model
    kind = "known classes" if images.update else f"new classes besides {known} known ones" if known else "new classes"
    training = config.train.for_task(len(about.task_sizes))
    length = f"{training.steps} steps" if training.steps else f"{training.epochs} epochs"
    length = f"{length} of {training.batch_size} images"
    if (model.train == "head" or about.task_sizes) and hasattr(METHODS[about.method], "updates_exactly"):
        length = "one pass over the images"  # nothing is trained
    size, width = about.preprocess.size, f" of width {model.width}" if model.width else ""
    print_line(
        f"{len(images.names)} {kind}: {len(images.train)} images to train on, {len(images.held_out)} held out; "
        f"{size}x{size} pixels, {model.network}{width}, {about.method}, {length}."
    )
    if single := _single(images):
        untested = "" if images.own_split else " are not tested: it is needed for training"
        print_line(
            f"classes of a single image ({', '.join(map(str, single))}){untested}. "
            "Privacy: what is stored of such a class describes that one image; a stored mean is its feature."
        )
    print_line(f"{this_should} take {time_left(sum(seconds for _, seconds in work))}.")


def _single(images: LessonImages) -> list[Name]:
    """Classes of one image to learn."""
    held_out = images.held_out.labels[:0] if images.own_split else images.held_out.labels
    counts = torch.cat([images.train.labels, held_out]).bincount().tolist()
    return [name for name, count in zip(images.names, counts, strict=True) if count == 1]
