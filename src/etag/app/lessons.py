"""`etag learn`: a folder of images becomes a lesson, with settings that follow from the images."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from etag.app import settings as automatic
from etag.app.bundle import About, Bundle
from etag.app.folders import lesson_files, material
from etag.app.learning import Material, Outcome, expected_seconds, learn
from etag.core.errors import EtagError
from etag.data.folders import Listing, split_off
from etag.data.preprocess import Preprocess
from etag.data.sources.folder import MEAN, STD
from etag.experiments.config import RunConfig, resolve
from etag.methods.registry import METHODS
from etag.report.formats import duration

RECIPE = "learn"
FIXED = ("method", "seed", "model", "data")  # what a bundle can not change once it has begun


def learn_folder(
    model: Path,
    folder: Path,
    given: dict[str, Any],
    settings: Sequence[str] = (),
    *,
    say: Callable[[str], None],
    dry_run: bool = False,
    verbose: bool = True,
) -> Outcome | None:
    """Learn the classes in a folder; the bundle is made if it is not there. Nothing is learnt in a dry run."""
    bundle = Bundle(model)
    with bundle.locked():
        about = bundle.about() if bundle.exists() else None
        listing = lesson_files(folder, about.classes if about else (), first=about is None)
        about = _begin(listing, given, settings) if about is None else _go_on(about, listing, given, settings)
        data = about.config.data
        lesson = material(listing, about.preprocess.size, data.memory, data.workers)
        _announce(bundle, about, lesson, say)
        return None if dry_run else learn(bundle, about, lesson, verbose=verbose)


def _begin(listing: Listing, given: dict[str, Any], settings: Sequence[str]) -> About:
    files = [file for files in listing.values() for file in files]
    start = automatic.for_images(files, given.get("model.weights"))
    config = _with_length(listing, start | given, settings)
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
        channels=3,
        task_sizes=(),
        classes=(),
    )


def _with_length(listing: Listing, given: dict[str, Any], settings: Sequence[str]) -> RunConfig:
    """The configuration, its length in proportion to the images unless the user says otherwise."""
    plain = resolve(RECIPE, given, settings)
    train, _ = split_off(listing)
    length = automatic.for_lesson(sum(map(len, train.values())), plain.train.batch_size)
    said = {setting.partition("=")[0].strip() for setting in settings} | given.keys()
    if said & {"train.steps", "train.epochs", "train.base"}:
        return plain
    return resolve(RECIPE, length | given, settings)


def _go_on(about: About, listing: Listing, given: dict[str, Any], settings: Sequence[str]) -> About:
    """The same configuration, but for how it trains now."""
    asked = {*given, *(setting.partition("=")[0].strip() for setting in settings)}
    if fixed := sorted(key for key in asked if key.split(".")[0] in FIXED):
        raise EtagError(
            f"a bundle keeps what it began with, so {', '.join(fixed)} can not be set now: only train.* can."
        )
    now = _with_length(listing, {"method": about.config.method.name}, settings)
    return About(**(about.__dict__ | {"config": about.config.model_copy(update={"train": now.train})}))


def _announce(bundle: Bundle, about: About, lesson: Material, say: Callable[[str], None]) -> None:
    """What will be done, and how long it should take."""
    known, config = len(about.classes), about.config
    old = f", beside {known} known ones" if known else ""
    training = config.train.for_task(len(about.task_sizes))
    length = f"{training.steps} steps" if training.steps else f"{training.epochs} epochs"
    size = about.preprocess.size
    say(
        f"{len(lesson.names)} new classes{old}: {len(lesson.train)} images to learn from, "
        f"{len(lesson.held_out)} held out; "
        f"{size}x{size} pixels, {config.model.backbone} of width {config.model.width or 'as is usual'}, "
        f"{config.method.name}, {length} of {training.batch_size} images."
    )
    say(f"this should take about {duration(expected_seconds(bundle, about, lesson))}.")
