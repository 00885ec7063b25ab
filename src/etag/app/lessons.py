"""Lessons: new classes, or more images of known ones, on a model directory."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from etag.app import settings as default_settings
from etag.app.announcing import announce
from etag.app.arguments import check_order
from etag.app.curves import CurveRecorder
from etag.app.evaluating import FolderEvaluation, Mistake, evaluate_folder, images_to_evaluate, list_mistakes
from etag.app.folders import LessonFiles, LessonImages, lesson_files, lesson_images
from etag.app.inspecting import checked
from etag.app.interrupted import LessonRecorder, resume_or_discard
from etag.app.labeled import AS_IT_IS, FolderOptions
from etag.app.labels import WrongLabel, wrong_labels
from etag.app.lesson_config import check_can_learn, choice_text, first_lesson, next_lesson, recipe_of, setting_pair
from etag.app.lesson_task import Work, lesson_task, lesson_work
from etag.app.talk import Talk
from etag.app.update_check import UpdateCheck, UpdateReport
from etag.core.errors import EtagError
from etag.core.evaluation import Evaluation
from etag.core.files import make_private_folder, user_cache
from etag.core.options import RuntimeOptions, TrainOptions
from etag.core.random import Placement
from etag.core.scenario import Task
from etag.core.text import count_text, duration, now
from etag.core.work import Callback
from etag.engine.lesson_progress import Forward, LessonProgress, PlainLines, ProgressLine, ProgressListener
from etag.engine.runtime import Runtime, launch, resolve_runtime
from etag.experiments.config import RunConfig
from etag.learner.calibration import Calibration
from etag.learner.callbacks import closing_all, create_callbacks
from etag.learner.config import create_method
from etag.learner.learner import Distribute, Learner, LearnOptions, print_nothing
from etag.learner.model_directory import VERSIONS, ModelDirectory
from etag.learner.stopping import Stop
from etag.learner.unfinished import UnfinishedLesson
from etag.learner.versions import Lesson, ModelInfo, Name
from etag.methods.abilities import UpdatesExactly

if TYPE_CHECKING:
    from etag.app.ray_features import RayFeatures

SOLVER_PHASE = "solver"
FEWEST_STEPS = 10


@dataclass(frozen=True)
class LessonResult:
    """What is known after a lesson."""

    per_class: dict[Name, tuple[int, int]]  # of the lesson's classes: right predictions, held-out images
    wrong_labels: list[WrongLabel]  # likely ones; none if the features of the images are not known
    calibration: Calibration
    lesson: Lesson
    about: ModelInfo
    learned_held_out: bool  # whether the held-out images were learned too, after they were evaluated
    taken_for_old: int  # held-out images of new classes that were taken for an old class
    mistakes: list[Mistake]  # held-out files that are classified wrongly, the surest ones first
    update: UpdateReport | None  # how an update of known classes changed the model; None if the classes are new
    evaluation: FolderEvaluation | None = None  # of a user's own labeled images, on request
    page: Path | None = None  # about the lesson


@dataclass(frozen=True)
class LessonOptions:
    """What a user may choose for a lesson."""

    given: Mapping[str, Any] = field(default_factory=dict)  # options by dotted key
    settings: Sequence[str] = ()  # the same as KEY=VALUE
    update: bool = False  # more images of known classes
    from_scratch: bool = False
    quality: default_settings.Quality = "balanced"
    minutes: float | None = None  # that training should take
    keep: int | None = None  # versions to store
    evaluate: Path | None = None  # labeled images of old and new classes, on which the model is evaluated afterwards
    page: bool = True  # write a page about the lesson
    discard: bool = False  # give up another lesson that was interrupted
    reading: FolderOptions = AS_IT_IS  # of the folder: where labels come from, how it is laid out
    skip_damaged: bool = False  # learn without the files that cannot be read
    dry_run: bool = False
    cache_features: bool = False  # features under a frozen backbone are in the user's cache and stay there
    ray: "RayFeatures | None" = None  # workers of a Ray cluster read the images and compute these features


@dataclass(frozen=True)
class _Prepared:
    """A lesson that is about to begin."""

    about: ModelInfo  # the model so far, or how a new one starts
    images: LessonImages
    runtime: RuntimeOptions
    note: UnfinishedLesson
    work: Work


def learn_folder(
    model: Path, folder: Path, options: LessonOptions | None = None, talk: Talk | None = None
) -> LessonResult | None:
    """Learn the classes in a folder; the model is created if it does not exist. A dry run learns nothing."""
    check_order("learn", model, [folder])
    options, talk, directory = options or LessonOptions(), talk or Talk(), ModelDirectory(model)
    if options.evaluate is not None:
        images_to_evaluate(options.evaluate)  # an error now, not after the lesson
    if (model / "config.yaml").is_file() and not (model / "metrics.json").is_file():
        raise EtagError(f"'{model}' holds an unfinished run: finish it with `etag run` first.")
    with directory.locked():
        lesson = _prepared(directory, folder, options, talk)
        if options.dry_run:
            return None
        resume_or_discard(directory, lesson.about, lesson.images, lesson.runtime.precision, talk, options.discard)
        curves = CurveRecorder()
        result = _learned(directory, lesson, options, talk, curves)
        if options.evaluate is not None:
            result = replace(result, evaluation=evaluate_folder(model, options.evaluate))
        if options.page:
            result = replace(result, page=_write_page(directory, result, curves, talk))
        return result


def _prepared(directory: ModelDirectory, folder: Path, options: LessonOptions, talk: Talk) -> _Prepared:
    """Read the folder, choose the configuration, and print what will be done and how long it should take."""
    known = check_can_learn(directory) if directory.exists() else None
    if options.update and known is None:
        raise EtagError(f"there is no model '{directory.path}' yet to update: learn classes first.")
    names = known.classes if known else ()
    files = lesson_files(folder, names, options.update, options.reading)
    # a wrong option is refused before all files are decoded
    _configured(known, files, options, lambda: default_settings.SIDES[0])
    files = checked(files, names, options.update, options.skip_damaged, options.ray is not None, talk.print_line)
    side = partial(default_settings.side_for, files.to_learn)
    about, config = _configured(known, files, options, side)
    if known is None:
        talk.print_line(choice_text(config, options.from_scratch))
    runtime = resolve_runtime(config.runtime, directory.unfinished.runtime, talk.print_line)
    if options.ray is not None:
        _check_can_distribute(directory, about)
    memory = 0 if options.ray else config.data.memory
    images = lesson_images(files, about, memory, config.data.workers, options.update)
    note = UnfinishedLesson(str(folder), len(images.names), options.update, now())
    work = lesson_work(directory, about, images, runtime)
    if options.minutes is not None:
        steps = _steps(directory, note, options.minutes, work, config.train.for_task(len(about.task_sizes)))
        note = replace(note, minutes=options.minutes, steps=steps)
        length = {"train.steps": steps, "train.base.steps": steps}
        about, config = _configured(known, files, replace(options, given=dict(options.given) | length), side)
        work = lesson_work(directory, about, images, runtime)
    this_should = "without Ray this would" if options.ray else "this should"
    announce(about, config, images, work, talk.print_line, this_should)
    return _Prepared(about, images, runtime, note, work)


def _learned(
    directory: ModelDirectory, lesson: _Prepared, options: LessonOptions, talk: Talk, curves: CurveRecorder
) -> LessonResult:
    """Learn it; features of a frozen backbone are kept, or computed elsewhere, if the options say so."""
    cache = None
    if options.cache_features:
        cache = user_cache() / "features"
        make_private_folder(cache)
    with nullcontext() if options.ray is None else options.ray.connected(lesson.runtime.precision) as distribute:
        result = learn(
            directory,
            lesson.about,
            lesson.images,
            lesson.runtime,
            talk,
            note=lesson.note,
            work=lesson.work,
            keep=options.keep,
            feature_folder=cache,
            distribute=distribute,
            callbacks=[curves],
        )
    if cache is not None and any(cache.iterdir()):
        talk.print_line(f"features of these images stay in '{cache}' until you delete that folder.")
    return result


def _write_page(directory: ModelDirectory, result: LessonResult, curves: CurveRecorder, talk: Talk) -> Path | None:
    """The page of the lesson. Without it the lesson is learned all the same."""
    from etag.app.pages import write_lesson_page  # matplotlib is only needed now

    try:
        return write_lesson_page(directory, result, curves)
    except EtagError as error:
        talk.print_line(f"the lesson is learned, but its page could not be written: {error}")
        return None


def _steps(
    directory: ModelDirectory, note: UnfinishedLesson, minutes: float, work: Work, training: TrainOptions
) -> int:
    """The steps of training the network that a lesson of so many minutes has. An interrupted lesson keeps its own:
    measured again, they would differ."""
    before = directory.unfinished.lesson
    if before is not None and (before.folder, before.minutes) == (note.folder, minutes) and before.steps:
        return before.steps
    if training.steps is None:
        raise EtagError("--minutes decides how long training takes: leave out --epochs and train.epochs.")
    network = sum(seconds for name, seconds in work if name == SOLVER_PHASE)
    if not network:
        raise EtagError("--minutes has nothing to do: this lesson trains no network. Leave it out.")
    others = sum(seconds for _, seconds in work) - network
    steps = round(training.steps * (60 * minutes - others) / network)
    if steps < FEWEST_STEPS:
        raise EtagError(
            f"--minutes {minutes:g} is too short: besides training the network, this lesson takes {duration(others)}."
        )
    return steps


def _configured(
    known: ModelInfo | None, files: LessonFiles, options: LessonOptions, side: Callable[[], int]
) -> tuple[ModelInfo, RunConfig]:
    """What the model is so far, or starts with, and the configuration of the lesson; `side` returns one that suits the
    images."""
    count = len(files.to_learn)
    if known is not None:
        if options.from_scratch:
            raise EtagError("--from-scratch is for a new model: the first lesson decides.")
        recipe = recipe_of(known)
        if options.quality != "balanced" and recipe == default_settings.PRETRAINED:
            raise EtagError("--quality is for a new model: it is the size of the images, and the first lesson decides.")
        defaults = default_settings.for_quality(options.quality, recipe, count)
        return next_lesson(known, count, defaults | dict(options.given), options.settings)
    asked = dict(options.given) | dict(map(setting_pair, options.settings))
    recipe, defaults = default_settings.for_new_model(asked, options.from_scratch, count, side)
    defaults |= default_settings.for_quality(options.quality, recipe, count)
    return first_lesson(count, defaults | dict(options.given), options.settings, recipe)


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


# -- one lesson ------------------------------------------------------------------------------------------------------


def learn(
    directory: ModelDirectory,
    about: ModelInfo,
    images: LessonImages,
    options: RuntimeOptions,
    talk: Talk | None = None,
    *,
    note: UnfinishedLesson | None = None,
    work: Work | None = None,
    keep: int | None = None,
    stop: Stop | None = None,
    feature_folder: Path | None = None,
    distribute: Distribute | None = None,
    callbacks: Sequence[Callback] = (),
) -> LessonResult:
    """One lesson; `about` describes the model so far, or how a new one starts. The caller holds the model's lock. An
    interrupted lesson is resumed if its images are the same; `note` says what it is, and `work` what it will take.
    Features of a frozen backbone are deleted at its end, or stored in a folder if one is given; with `distribute`,
    other processes compute them."""
    results: list[LessonResult] = []
    spoken = talk or Talk()
    what = "updating" if images.update else "learning"
    title = f"{what} {count_text(len(images.names), 'class', 'classes')}"

    def learned(runtime: Runtime) -> None:
        print_line = spoken.print_line if runtime.leader else print_nothing
        on_stop = stop or Stop(runtime.max_over_processes)
        method, task = lesson_task(runtime, directory, about, images, print_line)
        told: list[Callback] = []
        if runtime.leader:
            told = [*create_callbacks(options.callbacks, directory.path), *callbacks]
            told += _progress(directory, title, note, work or [], spoken)
        suspects: list[WrongLabel] = []
        chosen = LearnOptions(
            images.names,
            options,
            update=images.update,
            fingerprint=images.fingerprint,
            calibrate=True,
            learn_held_out=not images.own_split,
            keep_versions=keep or max(VERSIONS, about.keep_versions),
            before_saving=lambda learner: suspects.extend(_wrong_labels(learner, task, images)),
        )
        with closing_all(told), on_stop.on_signals(print_line):
            learner = Learner(
                method,
                runtime,
                directory,
                about,
                told,
                stop=on_stop,
                print_line=print_line,
                feature_folder=feature_folder,
                distribute=distribute,
            )
            check = UpdateCheck(learner, task, images.names) if images.update else None
            evaluation = learner.learn(task, chosen)
        results.append(_result(learner, task, images, evaluation, suspects, check))

    launch(options, learned)
    return results[0]


def _progress(
    directory: ModelDirectory, title: str, note: UnfinishedLesson | None, work: Work, talk: Talk
) -> list[Callback]:
    """What shows and records how far the lesson is."""
    listeners: list[ProgressListener] = []
    if note is not None:
        listeners.append(LessonRecorder(directory.unfinished, note))
    if talk.on_progress is not None:
        listeners.append(Forward(talk.on_progress))
    if talk.shows_progress:
        console = Console(highlight=False)
        live = console.is_terminal
        listeners.append(
            ProgressLine(console, title, talk.verbose) if live else PlainLines(talk.print_line, title, talk.verbose)
        )
    return [*listeners, LessonProgress(work, listeners)]


def _result(
    learner: Learner,
    task: Task,
    images: LessonImages,
    evaluation: Evaluation,
    suspects: list[WrongLabel],
    check: UpdateCheck | None,
) -> LessonResult:
    after = learner.about
    assert learner.calibration is not None
    places = {name: after.classes.index(name) for name in images.names}
    rows = {name: evaluation.confusion[place] for name, place in places.items()}
    return LessonResult(
        {name: (row[places[name]], sum(row)) for name, row in rows.items()},
        suspects,
        learner.calibration,
        after.history[-1],
        after,
        learned_held_out=isinstance(learner.method, UpdatesExactly) and not images.own_split,
        mistakes=_mistakes(learner, images),
        taken_for_old=0 if images.update else sum(sum(row[: task.num_old]) for row in rows.values()),
        update=None if check is None else check.report(),
    )


def _mistakes(learner: Learner, images: LessonImages) -> list[Mistake]:
    """The held-out files that are classified wrongly; none if the images were no files."""
    files, found = images.files[len(images.train) :], learner.predictions
    if not files or not found:
        return []
    probability = (found["scores"] / learner.about.temperature).softmax(1)  # as the model predicts from now on
    return list_mistakes(files, probability, found["label"], learner.about.classes)


def _wrong_labels(learner: Learner, task: Task, images: LessonImages) -> list[WrongLabel]:
    """Files in the wrong folder, likely; none unless the learner has computed the features of all images."""
    if not images.files or not learner.method.sees_features(task.index):
        return []
    train, held_out = (learner.features("features", part) for part in (task.train, task.test))
    labels = torch.cat([images.train.labels, images.held_out.labels])
    return wrong_labels(replace(train.join([held_out]), labels=labels), images.files, images.names)
