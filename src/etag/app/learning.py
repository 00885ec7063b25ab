"""Learning: lesson after lesson, from images with names for their classes, into a bundle."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from etag.app.bundle import About, Bundle, Lesson, Name, learned_on, logarithmic, new_method
from etag.core.files import checksum, write_atomically
from etag.core.scenario import ImageSet, Task
from etag.engine.engine import Engine
from etag.engine.progress import ProgressBars
from etag.engine.runtime import Runtime, launch
from etag.evaluation.calibration import fit_temperature
from etag.evaluation.evaluate import scores_pass
from etag.experiments.checkpointer import Stop, TaskCheckpointer
from etag.experiments.estimate import seconds_of_task
from etag.methods.base import Method

IMAGINED = 100  # features of each class, made to judge and calibrate by
REJECTED = 0.05  # share of images of known classes that may be taken for unknown ones
CHECKPOINT_EVERY = 60.0  # seconds


@dataclass(frozen=True)
class Material:
    """What a lesson is about: images to learn from, images held out, and the names of their classes, by label."""

    train: ImageSet
    held_out: ImageSet
    names: tuple[Name, ...]
    fingerprint: str  # tells whether two lessons are about the same images
    update: bool = False  # more images of known classes; else all of them are new


@dataclass(frozen=True)
class Outcome:
    """What is known after a lesson."""

    per_class: dict[Name, float]  # of the lesson's classes
    old_accuracy: float | None  # on what the generator makes of older classes: no old image is there to ask
    lesson: Lesson
    about: About


def learn(bundle: Bundle, about: About, material: Material, *, verbose: bool = True) -> Outcome:
    """One lesson. `about` is what is known so far: where the bundle has no version yet, how to begin.

    A lesson that was cut goes on where it was if the material is the same. The caller holds the bundle's lock.
    """
    found: list[Outcome] = []
    launch(about.config.runtime, _lesson, bundle, about, material, verbose, found)
    return found[0]


def _lesson(
    runtime: Runtime, bundle: Bundle, about: About, material: Material, verbose: bool, found: list[Outcome]
) -> None:
    console = Console(quiet=not (verbose and runtime.leader), highlight=False)
    say = partial(console.print, markup=False, soft_wrap=True)
    method, task = _begun(runtime, bundle, about, material, say)
    _make_ready(bundle, about, material)
    stop = Stop(runtime.highest)
    checkpointer = TaskCheckpointer(
        bundle.work / "checkpoints",
        method,
        task.index,
        every=about.config.runtime.checkpoint_every or CHECKPOINT_EVERY,
        every_steps=about.config.runtime.checkpoint_steps,
        writes=runtime.leader,
        stop=stop,
        say=say,
    )
    if checkpointer.where:
        say(f"going on at {checkpointer.where}, where this lesson was cut.")
    with ExitStack() as open_things:
        open_things.enter_context(stop.listening(say))
        bars = ProgressBars(console, f"learning {len(material.names)} classes", [len(task.train)])
        open_things.callback(bars.close)
        engine = Engine(runtime, [bars])
        plan = method.refine(task, len(about.history)) if material.update else method.whole_task(task)
        engine.execute(plan, checkpointer)
        outcome = _judged(engine, method, about, material, task, checkpointer.seconds)
        if runtime.leader:
            bundle.write(method, outcome.about)
        found.append(outcome)


def _begun(
    runtime: Runtime, bundle: Bundle, about: About, material: Material, say: Callable[[str], None] | None = None
) -> tuple[Method, Task]:
    """The method as it is so far, and the lesson as its next task; given weights are told of."""
    if bundle.exists():
        method, _ = bundle.learner(runtime.placement)
        method.context = replace(method.context, train=about.config.train)
    else:
        method = new_method(about, runtime.placement)
        if (loaded := method.load_weights()) and say:
            say(str(loaded))
    old, new = len(about.classes), 0 if material.update else len(material.names)
    known = (*about.classes, *material.names)  # of a class that is known already the first place counts
    places = torch.tensor([known.index(name) for name in material.names])
    task = Task(
        index=len(about.task_sizes),
        old=old,
        new=new,
        train=_relabeled(material.train, places),
        test=_relabeled(material.held_out, places),
        base=about.task_sizes[0] if about.task_sizes else new,
    )
    if new:
        method.check([*about.task_sizes, new])
    return method, task


def _relabeled(images: Any, places: Tensor) -> Any:
    """The same images; labels are places among all classes."""
    return images.relabeled(places[images.labels])


def _make_ready(bundle: Bundle, about: About, material: Material) -> None:
    """A place for checkpoints; what is left there of another lesson goes."""
    config = {key: value for key, value in about.config.plain().items() if key != "runtime"}
    plan = json.dumps([bundle.version if bundle.exists() else 0, config, material.fingerprint], sort_keys=True)
    file, mark = bundle.work / "lesson", checksum(plan.encode())
    if not file.is_file() or file.read_text() != mark:
        bundle.clear_work()
        bundle.work.mkdir(parents=True)
        write_atomically(file, mark)


def _judged(engine: Engine, method: Method, about: About, material: Material, task: Task, seconds: float) -> Outcome:
    """What the method can do now; probabilities calibrated by held-out images and by what is imagined of old ones."""
    predictor, placement = method.predictor(), method.context.placement
    found = engine.run_pass(scores_pass(task.test, method.solver, predictor, method.context.preprocess, placement))
    scores, labels = logarithmic(predictor, found["scores"]).cpu(), found["labels"].cpu()
    right = (scores.argmax(1) == labels).double()
    known = (*about.classes, *material.names)
    per_class = {name: right[labels == known.index(name)].mean().item() for name in material.names}
    old_accuracy = None
    if task.old and (imagined := method.imagined(task.old, IMAGINED)) is not None:
        made_labels, outputs = imagined
        made = logarithmic(predictor, predictor(outputs)).cpu()
        old_accuracy = (made.argmax(1) == made_labels.cpu()).double().mean().item()
        scores, labels = torch.cat([scores, made]), torch.cat([labels, made_labels.cpu()])
    temperature = fit_temperature(scores, labels)
    confidence = (scores / temperature).softmax(1).amax(1)
    lesson = Lesson(
        classes=material.names,
        images=len(material.train),
        held_out=len(material.held_out),
        accuracy=right.mean().item(),
        seconds=round(seconds, 1),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        kind="update" if material.update else "learn",
    )
    now = learned_on(
        about,
        lesson,
        task_sizes=about.task_sizes if material.update else (*about.task_sizes, len(material.names)),
        classes=about.classes if material.update else known,
        temperature=temperature,
        threshold=confidence.quantile(REJECTED).item(),
    )
    return Outcome(per_class, old_accuracy, lesson, now)


def expected_seconds(bundle: Bundle, about: About, material: Material) -> float:
    """How long a lesson should take, from a few steps that are really made."""
    found: list[float] = []

    def measure(runtime: Runtime) -> None:
        method, task = _begun(runtime, bundle, about, material)
        number = len(about.history)
        plan = partial(method.refine, number=number) if material.update else method.whole_task
        found.append(seconds_of_task(runtime, method, task, plan))

    launch(about.config.runtime.model_copy(update={"devices": 1}), measure)
    return found[0]
