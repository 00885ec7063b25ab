"""One run: every task learned in turn, judged after each, and written to its directory."""

import json
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor

from etag.core.errors import Diverged, EtagError
from etag.core.scenario import Scenario, Task
from etag.core.work import Callback
from etag.data.preprocess import Preprocess
from etag.data.scenario import build_scenario
from etag.engine.engine import Engine
from etag.engine.progress import ProgressBars, StepLog, TensorBoardLog
from etag.engine.runtime import Runtime, launch
from etag.evaluation.embedding import pick_rows, rows_of_some, tsne
from etag.evaluation.evaluate import features_pass, judge, predictions_pass
from etag.experiments.checkpointer import Stop, TaskCheckpointer
from etag.experiments.config import RunConfig
from etag.experiments.record import Record
from etag.experiments.store import RunDirectory, create_method, networks, parameter_counts
from etag.methods.base import Method

EMBEDDED = 1000  # test images in the picture of the feature space
SOME_CLASSES, SOME_IMAGES = 3, 50  # of each task, and of each of these, in the pictures after each task
MADE_ROWS, MADE_COLUMNS = 10, 12  # of the picture of what a generator makes


def run(
    config: RunConfig,
    out: Path,
    *,
    restart: bool = False,
    verbose: bool = False,
    strategy: str = "auto",
) -> dict[str, Any]:
    """Train and judge; returns the metrics, which are also in `out`.

    What is in `out` already is gone on with, if its configuration is the same: an unfinished run after the last task
    it had learned, with the same result as if it had never been cut; a finished one is not run again.
    """
    directory = RunDirectory(out)
    if restart or not directory.finished(config):
        launch(config.runtime, _run, config, out, restart, verbose, strategy=strategy)
    elif verbose:
        print(f"'{out}' holds this very run, finished; --restart would replace it.")
    metrics: dict[str, Any] = json.loads(directory.metrics.read_text())
    return metrics


def _run(runtime: Runtime, config: RunConfig, out: Path, restart: bool, verbose: bool) -> None:
    """What every process does; only the leader writes and talks."""
    console = Console(quiet=not (verbose and runtime.leader), highlight=False)
    scenario, preprocess = build_scenario(config.data, config.split, config.seed)
    placement = runtime.placement
    method = create_method(config, placement, preprocess, channels=scenario.channels, classes=len(scenario.classes))
    method.check(scenario.classes_per_task)
    directory = RunDirectory(out)
    fresh = restart or not directory.progress.is_file()
    if fresh and (loaded := method.load_weights()):  # before anything is replaced: they may not fit
        console.print(str(loaded), markup=False)
    with ExitStack() as held:
        if runtime.leader:
            held.enter_context(directory.locked())
            directory.begin(config, restart)
        runtime.fabric.barrier()
        _learn(runtime, config, directory, method, scenario, preprocess, console, fresh)


def _learn(
    runtime: Runtime,
    config: RunConfig,
    directory: RunDirectory,
    method: Method,
    scenario: Scenario,
    preprocess: Preprocess,
    console: Console,
    fresh: bool,
) -> None:
    """The tasks that are still to be learned, one after the other."""
    placement = runtime.placement
    record = Record() if fresh else directory.restore(method)
    stop, say = Stop(runtime.highest), partial(console.print, markup=False, soft_wrap=True)

    def journal_of(task: int) -> TaskCheckpointer:
        return TaskCheckpointer(
            directory.checkpoints,
            method,
            task,
            every=config.runtime.checkpoint_every,
            every_steps=config.runtime.checkpoint_steps,
            writes=runtime.leader,
            stop=stop,
            say=say,
        )

    tasks = len(record.evaluations)
    checkpointer = journal_of(tasks)
    runtime.fabric.barrier()  # everybody has read it
    if tasks or checkpointer.where:
        at = f", and task {tasks + 1} up to {checkpointer.where}" if checkpointer.where else ""
        say(f"{tasks} of {len(scenario)} tasks are learned already{at}; going on.")
    if runtime.leader:
        directory.cut_steps(tasks, checkpointer.logged)
    with (
        _listeners(runtime, directory, console, config, method, scenario) as callbacks,
        _stoppable(stop, say),
    ):
        engine = Engine(runtime, callbacks)
        for name, remark in method.remarks().items():
            say(f"{name}: {remark}.")
        for task in scenario.tasks[tasks:]:
            for callback in callbacks:
                callback.on_task_begin(task.index)
            given = scenario.given(task, method.card.all_data)
            method.begin_task(given)
            try:
                engine.execute(method.phases(given), checkpointer)
            except Diverged as error:
                raise EtagError(
                    f"{error} The last good checkpoint is of task {task.index + 1}, {checkpointer.last}."
                ) from error
            method.end_task(given)
            trained, seconds = time.perf_counter(), checkpointer.seconds
            known = scenario.tasks[: task.index + 1]
            answers = engine.run_pass(
                predictions_pass(known, method.solver, method.predictor(), preprocess, placement)
            )
            record.add(judge(answers, known), seconds, time.perf_counter() - trained)
            if runtime.leader:
                if (made := method.made_images(MADE_ROWS, MADE_COLUMNS)) is not None:
                    directory.keep_made(task.index, made, MADE_COLUMNS)
                directory.keep(method, record)
            if config.runtime.embed_tasks:
                some = partial(
                    rows_of_some,
                    classes_per_task=scenario.classes_per_task[: len(known)],
                    classes=SOME_CLASSES,
                    images=SOME_IMAGES,
                )
                picture = _embedding(engine, method, known, some, config.seed)
                if runtime.leader:
                    directory.write_json(directory.embedding_after(task.index), picture)
            checkpointer.clear()
            console.print(record.line(scenario))
            stop.check()
            checkpointer = journal_of(task.index + 1)
        embedding = _embedding(engine, method, scenario.tasks, partial(pick_rows, limit=EMBEDDED), config.seed)
    if runtime.leader:
        metrics = record.metrics(scenario) | _identity(config, method.remarks()) | _sizes(method, scenario)
        directory.write_json(directory.embedding, embedding)
        directory.save_model(method, config, scenario.classes)
        directory.finish(metrics)


def _embedding(
    engine: Engine, method: Method, tasks: Sequence[Task], pick: Callable[[Tensor], Tensor], seed: int
) -> dict[str, Any]:
    """Features of some test images in two dimensions."""
    first, *later = (task.test for task in tasks)
    shown = first.join(later)
    shown = shown.select(pick(shown.labels))
    found = engine.run_pass(features_pass(shown, method.solver, method.context.preprocess, method.context.placement))
    drawn = engine.runtime.leader and len(shown) >= 4
    return {"points": tsne(found["features"], seed) if drawn else [], "labels": found["labels"].tolist()}


@contextmanager
def _stoppable(stop: Stop, say: Callable[[str], None]) -> Iterator[None]:
    """Let signals stop a run at its next checkpoint. Only the main thread is told of signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with stop.listening(say):
        yield


@contextmanager
def _listeners(
    runtime: Runtime,
    directory: RunDirectory,
    console: Console,
    config: RunConfig,
    method: Method,
    scenario: Scenario,
) -> Iterator[Sequence[Callback]]:
    if not runtime.leader:
        yield []
        return
    images = scenario.images_given(method.card.all_data)
    callbacks: list[ProgressBars | StepLog | TensorBoardLog] = [StepLog(directory.steps)]
    if config.runtime.tensorboard:
        callbacks.append(TensorBoardLog(directory.path / "tensorboard"))
    callbacks.append(ProgressBars(console, f"{config.method.name} on {config.data.name} {config.split}", images))
    try:
        yield callbacks
    finally:
        for callback in callbacks:
            callback.close()


def _identity(config: RunConfig, remarks: dict[str, str]) -> dict[str, Any]:
    packages = ("etag-cil", "torch", "lightning-fabric", "numpy")
    return {
        "method": config.method.name,
        "data": config.data.name,
        "split": config.split,
        "seed": config.seed,
        "remarks": remarks,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores",
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
    }


def _sizes(method: Method, scenario: Scenario) -> dict[str, Any]:
    """Parameters, and the bytes that are kept from task to task."""
    parts = networks(method)
    parameters = parameter_counts(method)
    stored = {name: sum(t.nbytes for t in part.state_dict().values()) for name, part in parts.items()}
    if method.card.all_data:
        pixels = scenario.channels * scenario.size**2
        stored["images"] = sum(len(task.train) for task in scenario) * pixels
    return {
        "parameters": sum(parameters.values()),
        "parameters_by_part": {name: count for name, count in parameters.items() if count},
        "stored_bytes": sum(stored.values()),
        "stored_bytes_by_part": {name: count for name, count in stored.items() if count},
    }
