"""The learner: what happens to one task, from its first step to the saved model."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etag.core.errors import Diverged, EtagError
from etag.core.evaluation import Evaluation
from etag.core.files import checksum
from etag.core.options import RuntimeOptions
from etag.core.scenario import ImageSet, Task
from etag.core.text import now
from etag.core.work import Callback, Checkpointer, DataPass, Plan
from etag.data.images import Features, content_keys
from etag.data.preprocess import Preprocess
from etag.engine.engine import Engine
from etag.engine.runtime import Runtime
from etag.evaluation.evaluate import evaluate, predictions_pass
from etag.learner.calibration import Calibration, calibrate
from etag.learner.checkpoints import TaskCheckpointer
from etag.learner.features import FeatureStore
from etag.learner.model_directory import ModelDirectory
from etag.learner.shared_phases import SharedPhases
from etag.learner.stopping import Stop
from etag.learner.versions import Lesson, ModelInfo, Name
from etag.methods.abilities import CanUpdate, UpdatesExactly
from etag.methods.base import AnyMethod
from etag.models.backbone import Backbone

# from images to a set of their features under a frozen backbone, which other processes compute
Distribute = Callable[[Backbone, Preprocess, ImageSet], ImageSet]


def print_nothing(_: str) -> None:
    """Print nothing."""


class Learner:
    """Learns one task per call of `learn`: begins it, runs its phases with checkpoints, ends, evaluates and saves it.
    It may run in any thread; `stop.request()` makes it save a checkpoint within a few steps and stop. Without a
    directory nothing is saved, for estimates and tests. With `distribute`, features of a frozen backbone are computed
    elsewhere; in the folder `shared_phases`, runs of a grid share what they would all train alike."""

    def __init__(
        self,
        method: AnyMethod,
        runtime: Runtime,
        directory: ModelDirectory | None = None,
        about: ModelInfo | None = None,
        callbacks: Sequence[Callback] = (),
        *,
        stop: Stop | None = None,
        print_line: Callable[[str], None] = print_nothing,
        engine: Engine | None = None,
        feature_folder: Path | None = None,
        distribute: Distribute | None = None,
        shared_phases: Path | None = None,
    ) -> None:
        self.method, self.runtime, self.directory = method, runtime, directory
        self.callbacks = callbacks if runtime.leader else ()
        self.stop, self._print_line = stop or Stop(runtime.max_over_processes), print_line
        phases = None if shared_phases is None else SharedPhases(shared_phases, runtime, print_line, self.stop.check)
        self.engine = engine or Engine(runtime, self.callbacks, self.stop.check, phases)
        self.about = about or ModelInfo({}, method.context.preprocess, method.context.channels)
        self.calibration: Calibration | None = None  # of the last lesson that was calibrated
        self.predictions: dict[str, Tensor] = {}  # for its held-out images
        # where features of a frozen backbone are stored while the learner works; without a directory: in memory
        self._feature_folder = feature_folder or (None if directory is None else directory.unfinished.features)
        self._feature_stores: dict[str, FeatureStore] = {}
        self._distribute = distribute

    def learn(self, task: Task, options: "LearnOptions") -> Evaluation:
        """Learn a task and save the model; returns its evaluation (its accuracies are NaN if there are no test images).
        An interrupted task is resumed."""
        start, checkpointer = time.perf_counter(), self.open_checkpoints(task, options)
        for callback in self.callbacks:
            callback.on_task_begin(task, {} if checkpointer is None else checkpointer.saved_steps)
        try:
            self.train(task, checkpointer, update_number=len(self.about.history) if options.update else None)
        except Diverged as error:
            where = (
                "" if checkpointer is None else f" The last good checkpoint was saved at {checkpointer.last_position}."
            )
            raise EtagError(f"task {task.index + 1}: {error}{where}") from error
        seconds = time.perf_counter() - start if checkpointer is None else checkpointer.seconds
        evaluation, test_seconds = self._evaluate(task, options)
        for callback in self.callbacks if evaluation.images else ():
            callback.on_evaluation(task, evaluation)
        options.before_saving(self)
        if options.calibrate and options.learn_held_out and isinstance(self.method, UpdatesExactly) and len(task.test):
            # nothing else needs the held-out images to be new any more
            self.train(replace(task, train=task.test), update_number=len(self.about.history))
        self._save(task, options, evaluation, seconds, test_seconds)
        for callback in self.callbacks:
            callback.on_task_end(task)
        self.stop.check()
        return evaluation

    def train(self, task: Task, checkpointer: Checkpointer | None = None, update_number: int | None = None) -> None:
        """Train a task without evaluating or saving it; with `update_number`, train on more images of known classes.
        The number (of lessons so far) only makes random draws differ."""
        if update_number is None:
            self.method.begin_task(task)
        if self.method.sees_features(task.index):
            task = replace(task, train=self.features("features", task.train))
        if update_number is not None:
            self.engine.execute(self._update_plan(task, update_number), checkpointer)
            return
        self.engine.execute(self.method.phases(task), checkpointer)
        self.method.end_task(task)

    def features(self, name: str, images: ImageSet) -> Features:
        """The features of images under the frozen backbone. Those of images that this learner has seen before are not
        computed again."""
        if isinstance(images, Features):
            return images
        store, keys = self._feature_store(), content_keys(images)
        with store.updating():
            if places := store.missing(keys):
                for entry in self.engine.stream(self._features_pass(name, images.select(torch.tensor(places)))):
                    own, places = places[: len(entry["features"])], places[len(entry["features"]) :]
                    store.add([keys[place] for place in own], entry["features"])
        return Features(*store.rows(keys), images.labels)

    def _features_pass(self, name: str, images: ImageSet) -> DataPass:
        size = self.method.pass_size(images)  # the same batches wherever they are computed, for the same features
        if self._distribute is not None:
            images = self._distribute(self.method.solver.backbone, self.method.context.preprocess, images)
        return self.method.features_pass(name, images, size=size)

    def _feature_store(self) -> FeatureStore:
        """The store for the backbone as it is now."""
        backbone, preprocess = self.method.solver.backbone, self.method.context.preprocess
        facts = repr((preprocess, self.runtime.options.precision)).encode()
        tensors = [value.detach().cpu().contiguous().numpy().tobytes() for value in backbone.state_dict().values()]
        name = checksum(b"".join([facts, *tensors]))
        if name not in self._feature_stores:
            folder, leader = self._feature_folder, self.runtime.leader
            self._feature_stores[name] = FeatureStore(folder, name, backbone.output_size, leader)
        return self._feature_stores[name]

    def test_images(self, tasks: Sequence[Task]) -> ImageSet:
        """The test images of tasks as one set: as features, if the backbone does not change any more."""
        images = tasks[0].test.join([task.test for task in tasks[1:]])
        return self.features("test features", images) if self.method.sees_features(tasks[-1].index + 1) else images

    def _update_plan(self, task: Task, number: int) -> Plan:
        if not isinstance(self.method, CanUpdate):
            raise EtagError(
                f"{self.method.name} cannot learn more images of known classes: `etag methods` lists those that can."
            )
        return self.method.update(task, number)

    def open_checkpoints(self, task: Task, options: "LearnOptions") -> TaskCheckpointer | None:
        """The checkpoints of a task; None without a directory. Every process must call it."""
        if self.directory is None:
            return None
        if self.runtime.leader:
            description = describe_task(self.about, task.index, options.fingerprint, self.runtime.options.precision)
            self.directory.unfinished.prepare(self.directory.version_or_zero, description)
            self.directory.unfinished.record_runtime(self.runtime.options)
        self.runtime.fabric.barrier()  # the folder is ready
        folder, leader = self.directory.unfinished.checkpoints, self.runtime.leader
        checkpointer = TaskCheckpointer(
            folder, self.method, task.index, options.runtime, leader, self.stop, self._print_line
        )
        self.runtime.fabric.barrier()  # everybody has read it
        if checkpointer.resumed_at:
            self._print_line(f"resuming task {task.index + 1} at {checkpointer.resumed_at}.")
        return checkpointer

    def evaluate(self, tasks: Sequence[Task]) -> Evaluation:
        """Evaluate the classifier as it is now on the test images of tasks."""
        return evaluate(self._predictions(tasks), tasks)

    def _predictions(self, tasks: Sequence[Task], scores: bool = False) -> dict[str, Tensor]:
        """What is predicted for the test images of tasks; with `scores` also with which probabilities."""
        batches = self.method.pass_batches("evaluation", self.test_images(tasks))
        classifier, sizes = self.method.classifier(), self.method.task_sizes
        return self.engine.run_pass(predictions_pass(batches, classifier, sizes, scores))

    def _evaluate(self, task: Task, options: "LearnOptions") -> tuple[Evaluation, float]:
        """Evaluate on the test images of `options.evaluated`, and calibrate if `options.calibrate`. Without test images
        (classes of one image) the training images take their place for calibration."""
        start, tasks = time.perf_counter(), options.evaluated or (task,)
        count = sum(len(each.test) for each in tasks)
        predictions = self._predictions(tasks if count else [replace(task, test=task.train)], options.calibrate)
        evaluation = evaluate({name: rows[:count] for name, rows in predictions.items()}, tasks)
        if options.calibrate:
            self.calibration = calibrate(self.method, predictions, count, task.num_old, self.about)
            self.predictions = {name: rows[:count].cpu() for name, rows in predictions.items()}
        return evaluation, time.perf_counter() - start

    def _save(
        self, task: Task, options: "LearnOptions", evaluation: Evaluation, seconds: float, test_seconds: float
    ) -> None:
        lesson = Lesson(
            kind="update" if options.update else "learn",
            classes=options.names,
            images=len(task.train),
            seconds=round(seconds, 3),
            test_seconds=round(test_seconds, 3),
            date=now(),
            evaluation=evaluation if evaluation.images else None,
            threshold=self.calibration.lesson_threshold if options.calibrate and self.calibration else None,
        )
        changes: dict[str, Any] = {"task_sizes": tuple(self.method.task_sizes), "pinned": options.pinned}
        changes["keep_versions"] = options.keep_versions
        if not options.update:
            changes["classes"] = (*self.about.classes, *options.names)
        if self.calibration is not None:
            changes["temperature"] = self.calibration.temperature
            if not self.about.threshold_chosen:
                changes["threshold"] = self.calibration.threshold
        self.about = self.about.with_lesson(lesson, **changes)
        if self.directory is not None and self.runtime.leader:
            self.directory.save(self.method, self.about, options.keep_versions)
        self.runtime.fabric.barrier()
        if self.directory is not None and self._feature_folder == self.directory.unfinished.features:
            self._feature_stores.clear()  # its folder is gone with the checkpoints


def describe_task(about: ModelInfo, index: int, fingerprint: str, precision: str) -> list[Any]:
    """What a task must have in common with an interrupted one to resume it: the learner's configuration, its own
    number, its images and the precision."""
    return [about.config, index, fingerprint, precision]


@dataclass(frozen=True)
class LearnOptions:
    """How a task is learned, evaluated and saved."""

    names: tuple[Name, ...]  # of the task's new classes (of the known ones, for an update)
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    update: bool = False  # more images of known classes
    fingerprint: str = ""  # identifies the images: checkpoints of other images are not resumed
    evaluated: tuple[Task, ...] = ()  # tasks whose test images are evaluated; none means the task itself
    calibrate: bool = False  # fit temperature and threshold to the test images
    learn_held_out: bool = True  # once they are evaluated and the model is calibrated, if the method can do so exactly
    pinned: bool = False  # the version after a run's last task, which is not deleted with old versions
    keep_versions: int = 3
    before_saving: Callable[[Learner], None] = lambda _: None  # more to do or write once the task is evaluated
