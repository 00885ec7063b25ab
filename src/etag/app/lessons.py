"""`etag learn`: a folder of images becomes a lesson, with settings that follow from the images."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from etag.app import settings as automatic
from etag.app.bundle import About, Bundle, Lesson, Name, learned_on
from etag.app.folders import lesson_files, material
from etag.app.learning import Material, Outcome, expected_seconds, learn
from etag.core.errors import EtagError
from etag.core.text import duration
from etag.data.preprocess import Preprocess
from etag.data.sources.folder import MEAN, STD
from etag.experiments.config import RunConfig, resolve
from etag.methods.registry import METHODS

RECIPE = "learn"
FAR_FEWER = 10  # times fewer images than the largest class has
FIXED = ("method", "seed", "model", "data")  # what a bundle cannot change once it has begun


def learn_folder(
    model: Path,
    folder: Path,
    given: dict[str, Any],
    settings: Sequence[str] = (),
    *,
    update: bool = False,
    say: Callable[[str], None],
    dry_run: bool = False,
    verbose: bool = True,
) -> Outcome | None:
    """Learn the classes in a folder; the bundle is made if it is not there. Nothing is learned in a dry run."""
    bundle = Bundle(model)
    with bundle.locked():
        about = bundle.about() if bundle.exists() else None
        if update and about is None:
            raise EtagError(f"there is no bundle '{model}' yet to update: learn classes first.")
        listing = lesson_files(folder, about.classes if about else (), update)
        files = [file for files in listing.values() for file in files]
        if about is None:
            start = automatic.for_images(files, given.get("model.weights"))
            about = begin(len(files), start | given, settings)
        else:
            about = go_on(about, len(files), given, settings)
        data = about.config.data
        lesson = material(listing, about.preprocess.size, data.memory, data.workers, update)
        _announce(bundle, about, lesson, say)
        return None if dry_run else learn(bundle, about, lesson, verbose=verbose)


def begin(images: int, given: dict[str, Any], settings: Sequence[str] = ()) -> About:
    """How a bundle begins, with so many images."""
    config = _with_length(images, given, settings)
    if METHODS[config.method.name].card.all_data:
        raise EtagError(
            f"{config.method.name} needs all images of all lessons, and none are kept: choose another method."
        )
    if config.method.head == "fixed":
        raise EtagError("method.head=fixed needs to know how many classes will come: choose growing.")
    size = config.data.size or automatic.SIDES[0]
    flip = True if config.data.flip is None else config.data.flip
    return About(
        config=config,
        preprocess=Preprocess(MEAN, STD, size, flip, config.data.resized_crop),
        channels=len(MEAN),
        task_sizes=(),
        classes=(),
    )


def go_on(about: About, images: int, given: dict[str, Any], settings: Sequence[str] = ()) -> About:
    """The same configuration, but for how it trains now, with so many images."""
    asked = {*given, *map(_key, settings)}
    if fixed := sorted(key for key in asked if key.split(".")[0] in FIXED):
        raise EtagError(
            f"a bundle keeps what it began with, so {', '.join(fixed)} cannot be set now: only train.* can."
        )
    now = _with_length(images, {"method": about.config.method.name} | given, settings)
    return replace(about, config=about.config.model_copy(update={"train": now.train}))


def _with_length(images: int, given: dict[str, Any], settings: Sequence[str]) -> RunConfig:
    """The configuration, its length in proportion to the images unless the user says otherwise."""
    plain = resolve(RECIPE, given, settings)
    if {*given, *map(_key, settings)} & {"train.steps", "train.epochs", "train.base"}:
        return plain
    return resolve(RECIPE, automatic.for_lesson(images, plain.train.batch_size) | given, settings)


def _key(setting: str) -> str:
    return setting.partition("=")[0].strip()


def _announce(bundle: Bundle, about: About, lesson: Material, say: Callable[[str], None]) -> None:
    """What will be done, and how long it should take."""
    known, config = len(about.classes), about.config
    kind = "known classes" if lesson.update else f"new classes, beside {known} known ones" if known else "new classes"
    training = config.train.for_task(len(about.task_sizes))
    length = f"{training.steps} steps" if training.steps else f"{training.epochs} epochs"
    size = about.preprocess.size
    say(
        f"{len(lesson.names)} {kind}: {len(lesson.train)} images to learn from, "
        f"{len(lesson.held_out)} held out; "
        f"{size}x{size} pixels, {config.model.backbone} of width {config.model.width or 'as is usual'}, "
        f"{config.method.name}, {length} of {training.batch_size} images."
    )
    if rare := _rare(lesson):
        say(f"rare classes are recognized less often; add images if you can: {', '.join(rare)}.")
    say(f"this should take about {duration(expected_seconds(bundle, about, lesson))}.")


def _rare(lesson: Material) -> list[str]:
    """Classes with far fewer images than the largest one, with their number."""
    counts = lesson.train.labels.bincount(minlength=len(lesson.names)).tolist()
    pairs = zip(lesson.names, counts, strict=True)
    return [f"{name} ({count} of {max(counts)})" for name, count in pairs if FAR_FEWER * count < max(counts)]


def forget_class(model: Path, name: Name) -> About:
    """Take a class out of a bundle: its rows in head, auxiliaries and generator are removed, not just hidden."""
    bundle = Bundle(model)
    with bundle.locked():
        method, about = bundle.learner()
        if name not in about.classes:
            raise EtagError(f"'{model}' knows no class '{name}': known are {', '.join(map(str, about.classes))}.")
        if len(about.classes) <= 2:
            raise EtagError("two classes at least must be left to tell apart.")
        method.forget(about.classes.index(name))
        lesson = Lesson((), 0, 0, None, 0.0, datetime.now(UTC).isoformat(timespec="seconds"), "forget")
        history = tuple(replace(past, classes=_without(past.classes, name)) for past in about.history)
        left = replace(about, classes=_without(about.classes, name), history=history)
        about = learned_on(left, lesson, task_sizes=tuple(method.task_sizes))
        bundle.write(method, about)
        bundle.drop_versions()
        return about


def _without(names: tuple[Name, ...], name: Name) -> tuple[Name, ...]:
    return tuple(known for known in names if known != name)
