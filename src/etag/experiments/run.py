"""One run: a scenario learned task by task, evaluated after each, and written to its directory."""

import os
import platform
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from etag.core.evaluation import Evaluation
from etag.core.scenario import Scenario, Task
from etag.core.text import now, printable
from etag.core.work import Callback
from etag.data.preprocess import Preprocess
from etag.data.rows import pick_rows
from etag.data.scenario import build_scenario
from etag.engine.progress import ProgressBars, StepLog
from etag.engine.runtime import Runtime, is_follower, launch, resolve_runtime
from etag.evaluation.metrics import accuracy_after_each_task, summary
from etag.experiments.config import RunConfig
from etag.experiments.run_directory import RunDirectory
from etag.learner.callbacks import closing_all, create_callbacks
from etag.learner.config import LearnerConfig, create_method, parameter_counts
from etag.learner.learner import Learner, LearnOptions
from etag.learner.stopping import Stop
from etag.learner.versions import Lesson, ModelInfo
from etag.methods.abilities import GeneratesImages
from etag.methods.base import AnyMethod

SAVED_FEATURES = 500  # test images per saved file
GENERATED_ROWS, GENERATED_COLUMNS = 10, 12  # of the overview of generated images


def run(
    config: RunConfig, out: Path, *, restart: bool = False, verbose: bool = False, strategy: str = "auto"
) -> dict[str, Any]:
    """Train and evaluate; returns the metrics, which are also in `out`. A run that `out` already holds is resumed if
    its configuration is the same: an unfinished one from its last checkpoint, with the same result as if it had never
    been interrupted; a finished one is not run again."""
    directory = RunDirectory(out)
    if restart or not directory.finished(config):
        recorded = None if restart else directory.recorded_runtime
        print_line = (lambda line: print(printable(line))) if verbose and not is_follower() else None
        config = config.model_copy(update={"runtime": resolve_runtime(config.runtime, recorded, print_line)})
        launch(config.runtime, _run, config, out, restart, verbose, strategy=strategy)
    elif verbose:
        print(printable(f"'{out}' already contains this run, finished; use --restart to run it again."))
    return directory.read_metrics()


def _run(runtime: Runtime, config: RunConfig, out: Path, restart: bool, verbose: bool) -> None:
    """The work of every process; only the leader writes and prints."""
    console = Console(quiet=not (verbose and runtime.leader), highlight=False)
    scenario, preprocess = build_scenario(config.data, config.split, config.seed, config.model.images)
    directory = RunDirectory(out)
    untrained = restart or directory.restarting or not directory.model.exists()  # no task is finished
    method, about = _new(runtime, config, scenario, preprocess)
    # loaded here, so that weights that do not fit raise an error before --restart deletes the old run
    if untrained and (loaded := method.load_weights()):
        console.print(printable(str(loaded)), markup=False)
    with ExitStack() as stack:
        if runtime.leader:
            stack.enter_context(directory.locked())
            directory.begin(config, restart)
        runtime.fabric.barrier()
        if not untrained:
            with directory.resuming():
                method, about = directory.model.load_method(runtime.placement)
        _learn(runtime, config, directory, method, about, scenario, console)


def _new(
    runtime: Runtime, config: RunConfig, scenario: Scenario, preprocess: Preprocess
) -> tuple[AnyMethod, ModelInfo]:
    """An untrained method for a scenario, and its `ModelInfo`, still without lessons (it is saved as about.json)."""
    classes, channels = len(scenario.classes), scenario.channels
    method = create_method(config, runtime.placement, preprocess, channels=channels, classes=classes)
    method.check(scenario.new_classes_per_task)
    learner = LearnerConfig.from_json(config.to_json())
    return method, ModelInfo(learner.to_json(), preprocess, channels, expected_classes=classes)


def _learn(
    runtime: Runtime,
    config: RunConfig,
    directory: RunDirectory,
    method: AnyMethod,
    about: ModelInfo,
    scenario: Scenario,
    console: Console,
) -> None:
    """Learn the tasks that are left, then write the metrics."""
    print_line, stop = partial(console.print, markup=False, soft_wrap=True), Stop(runtime.max_over_processes)
    if about.history:
        print_line(f"{len(about.history)} of {len(scenario)} tasks are learned already; resuming.")
    for name, remark in method.remarks().items():
        print_line(f"{name}: {remark}.")
    image_counts = scenario.training_image_counts(method.info.all_data)
    title = f"{config.method.name} on {config.data.name} {config.split}"
    callbacks: list[Callback] = []
    if runtime.leader:
        named = create_callbacks(config.runtime.callbacks, directory.path)
        callbacks = [StepLog(directory.steps), *named, ProgressBars(console, title, image_counts)]
    with closing_all(callbacks), stop.on_signals(print_line):
        # `etag bench` sets these for its runs
        shared, phases = os.environ.get("ETAG_FEATURES"), os.environ.get("ETAG_PHASES")
        learner = Learner(
            method,
            runtime,
            directory.model,
            about,
            callbacks,
            stop=stop,
            print_line=print_line,
            feature_folder=Path(shared).expanduser() if shared else directory.frozen_features,
            shared_phases=Path(phases).expanduser() if phases else None,
        )
        for task in scenario.tasks[len(about.history) :]:
            options = LearnOptions(
                names=scenario.classes[task.num_old : task.num_seen],
                runtime=config.runtime,
                evaluated=scenario.tasks[: task.index + 1],
                pinned=task is scenario.tasks[-1],
                keep_versions=1,
                before_saving=partial(
                    _save_artifacts, directory=directory, config=config, task=task, scenario=scenario
                ),
            )
            learner.learn(scenario.training_task(task, method.info.all_data), options)
            console.print(progress_line(learner.about.history, scenario))
    if runtime.leader:
        history = learner.about.history
        metrics = run_metrics(history, scenario) | _identity(config, method.remarks()) | _sizes(method, scenario)
        directory.finish(metrics)


def _save_artifacts(
    learner: Learner, directory: RunDirectory, config: RunConfig, task: Task, scenario: Scenario
) -> None:
    """After a task, save generated images if the method generates any, and test features if the options say so."""
    method, leader = learner.method, learner.runtime.leader
    if leader and isinstance(method, GeneratesImages):
        images = method.generate_images(GENERATED_ROWS, GENERATED_COLUMNS)
        if images is not None:
            directory.save_generated(task.index, images, GENERATED_COLUMNS)
    after_each, last = config.evaluation.features == "every", task is scenario.tasks[-1]
    if after_each or (last and config.evaluation.features == "last"):
        images_so_far = learner.test_images(scenario.tasks[: task.index + 1])
        some = images_so_far.select(pick_rows(images_so_far.labels, SAVED_FEATURES))
        result = learner.engine.run_pass(method.features_pass("features", some))
        if leader:
            directory.save_features(task.index, result["features"], result["labels"])


# -- results ---------------------------------------------------------------------------------------------------------


def _evaluations(history: Sequence[Lesson]) -> list[Evaluation]:
    return [lesson.evaluation for lesson in history if lesson.evaluation is not None]


def progress_line(history: Sequence[Lesson], scenario: Scenario) -> str:
    """The last task in a few words."""
    number, classes = len(history), scenario.new_classes_per_task
    matrix = [evaluation.accuracies for evaluation in _evaluations(history)]
    accuracy = accuracy_after_each_task(matrix, scenario.classes_present_per_task, weighted=True)[-1]
    return (
        f"task {number}/{len(scenario)}: {sum(classes[:number])} classes, accuracy {accuracy:.1%} over all of "
        f"them, {history[-1].seconds:.1f} s"
    )


def run_metrics(history: Sequence[Lesson], scenario: Scenario) -> dict[str, Any]:
    """All measurements of a run. Matrices are square, with null where a task was not learned yet."""
    classes, evaluations = scenario.classes_present_per_task, _evaluations(history)
    matrix = [evaluation.accuracies for evaluation in evaluations]
    return summary(matrix, classes) | {
        "accuracy_matrix": _square(matrix),
        "task_aware_matrix": _square([evaluation.task_aware for evaluation in evaluations]),
        "step_accuracy_weighted": accuracy_after_each_task(matrix, classes, weighted=True),
        "step_accuracy_plain": accuracy_after_each_task(matrix, classes, weighted=False),
        "classes_per_task": scenario.new_classes_per_task,
        "classes_in_task": classes,
        "class_names": list(scenario.classes),
        "confusion": evaluations[-1].confusion,
        "train_seconds": [lesson.seconds for lesson in history],
        "test_seconds": [lesson.test_seconds for lesson in history],
    }


def _square(rows: list[list[float]]) -> list[list[float | None]]:
    return [[*row, *[None] * (len(rows) - len(row))] for row in rows]


def _identity(config: RunConfig, remarks: dict[str, str]) -> dict[str, Any]:
    packages = ("etag-cil", "torch", "lightning-fabric", "numpy")
    return {
        "method": config.method.name,
        "data": config.data.name,
        "split": config.split,
        "seed": config.seed,
        "precision": config.runtime.precision,
        "remarks": remarks,
        "date": now(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores",
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
    }


def _sizes(method: AnyMethod, scenario: Scenario) -> dict[str, Any]:
    """Parameters, and the bytes that are stored from task to task."""
    parameters = parameter_counts(method)
    stored: dict[str, int] = {}
    for role, part in method.parts.items():
        networks = dict(part.named_children()) if role == "solver" else {role: part}
        stored |= {name: sum(t.nbytes for t in net.state_dict().values()) for name, net in networks.items()}
    if method.info.all_data:
        pixels = scenario.channels * scenario.size**2
        stored["images"] = sum(len(task.train) for task in scenario) * pixels
    return {
        "parameters": sum(parameters.values()),
        "parameters_by_part": {name: count for name, count in parameters.items() if count},
        "stored_bytes": sum(stored.values()),
        "stored_bytes_by_part": {name: count for name, count in stored.items() if count},
    }
