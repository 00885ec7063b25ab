"""One run: every task learnt in turn, judged after each, and written to its directory."""

import json
import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from etag.core.scenario import Scenario
from etag.core.work import Listener
from etag.data.scenario import build_scenario
from etag.engine.engine import Engine
from etag.engine.progress import ProgressBars, StepLog, TensorBoardLog
from etag.engine.runtime import Runtime, launch
from etag.evaluation.embedding import pick_rows, tsne
from etag.evaluation.evaluate import Judgement, answers_sweep, features_sweep, judge
from etag.evaluation.metrics import step_accuracies, summary
from etag.experiments.config import RunConfig
from etag.experiments.store import RunDirectory, create_method, networks
from etag.methods.base import Method

EMBEDDED = 1000  # test images in the picture of the feature space


def run(
    config: RunConfig,
    out: Path,
    *,
    restart: bool = False,
    verbose: bool = False,
    strategy: str = "auto",
) -> dict[str, Any]:
    """Train and judge; returns the metrics, which are also in `out`."""
    launch(config.runtime, _run, config, out, restart, verbose, strategy=strategy)
    metrics: dict[str, Any] = json.loads(RunDirectory(out).metrics.read_text())
    return metrics


def _run(runtime: Runtime, config: RunConfig, out: Path, restart: bool, verbose: bool) -> None:
    """What every process does; only the leader writes and talks."""
    console = Console(quiet=not (verbose and runtime.leader), highlight=False)
    scenario, preprocess = build_scenario(config.data, config.split, config.seed)
    placement = runtime.placement
    method = create_method(config, placement, preprocess, channels=scenario.channels, classes=len(scenario.classes))
    if loaded := method.load_weights():
        console.print(str(loaded), markup=False)
    directory, record = RunDirectory(out), Record()
    if runtime.leader:
        directory.begin(config, restart)
    with _listeners(runtime, directory, console, config, method, scenario) as listeners:
        engine = Engine(runtime, listeners)
        for task in scenario:
            start = time.perf_counter()
            for listener in listeners:
                listener.begin_task(task.index)
            given = scenario.given(task, method.card.all_data)
            method.begin_task(given)
            engine.execute(method.phases(given))
            method.end_task(given)
            trained = time.perf_counter()
            known = scenario.tasks[: task.index + 1]
            answers = engine.sweep(answers_sweep(known, method.solver, method.predictor(), preprocess, placement))
            record.add(judge(answers, known), trained - start, time.perf_counter() - trained)
            console.print(record.line(scenario))
        first, *later = (task.test for task in scenario)
        shown = first.join(later)
        shown = shown.select(pick_rows(shown.labels, EMBEDDED))
        features = engine.sweep(features_sweep(shown, method.solver, preprocess, placement))
    if runtime.leader:
        metrics = record.metrics(scenario) | _identity(config) | _sizes(method, scenario)
        points = tsne(features["feature"], config.seed) if len(shown) >= 4 else []
        directory.write_json(directory.embedding, {"points": points, "labels": features["label"].tolist()})
        directory.save_model(method, config, scenario.classes)
        directory.write_json(directory.metrics, metrics)


@contextmanager
def _listeners(
    runtime: Runtime,
    directory: RunDirectory,
    console: Console,
    config: RunConfig,
    method: Method,
    scenario: Scenario,
) -> Iterator[Sequence[Listener]]:
    if not runtime.leader:
        yield []
        return
    images = [len(scenario.given(task, method.card.all_data).train) for task in scenario]
    listeners: list[ProgressBars | StepLog | TensorBoardLog] = [StepLog(directory.steps)]
    if config.runtime.tensorboard:
        listeners.append(TensorBoardLog(directory.path / "tensorboard"))
    listeners.append(ProgressBars(console, f"{config.method.name} on {config.data.name} {config.split}", images))
    try:
        yield listeners
    finally:
        for listener in listeners:
            listener.close()


@dataclass
class Record:
    """What was measured, task by task."""

    judgements: list[Judgement] = field(default_factory=list)
    train_seconds: list[float] = field(default_factory=list)
    test_seconds: list[float] = field(default_factory=list)

    def add(self, judgement: Judgement, train_seconds: float, test_seconds: float) -> None:
        """After a task."""
        self.judgements.append(judgement)
        self.train_seconds.append(round(train_seconds, 3))
        self.test_seconds.append(round(test_seconds, 3))

    @property
    def matrix(self) -> list[list[float]]:
        """Row t: the accuracies on tasks 0 .. t."""
        return [judgement.accuracies for judgement in self.judgements]

    def line(self, scenario: Scenario) -> str:
        """The last task in a few words."""
        number, classes = len(self.judgements), scenario.classes_per_task
        accuracy = step_accuracies(self.matrix, classes, weighted=True)[-1]
        return (
            f"task {number}/{len(scenario)}: {sum(classes[:number])} classes, accuracy {accuracy:.1%} over all of "
            f"them, {self.train_seconds[-1]:.1f} s"
        )

    def metrics(self, scenario: Scenario) -> dict[str, Any]:
        """All that is judged. Matrices are square, with null where a task was not learnt yet."""
        classes = scenario.classes_per_task
        return summary(self.matrix, classes) | {
            "accuracy_matrix": _square(self.matrix),
            "task_aware_matrix": _square([judgement.task_aware for judgement in self.judgements]),
            "step_accuracy_weighted": step_accuracies(self.matrix, classes, weighted=True),
            "step_accuracy_plain": step_accuracies(self.matrix, classes, weighted=False),
            "classes_per_task": classes,
            "class_names": list(scenario.classes),
            "confusion": self.judgements[-1].confusion,
            "train_seconds": self.train_seconds,
            "test_seconds": self.test_seconds,
        }


def _square(rows: list[list[float]]) -> list[list[float | None]]:
    return [[*row, *[None] * (len(rows) - len(row))] for row in rows]


def _identity(config: RunConfig) -> dict[str, Any]:
    packages = ("etag-cil", "torch", "lightning-fabric", "numpy")
    return {
        "method": config.method.name,
        "data": config.data.name,
        "split": config.split,
        "seed": config.seed,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores",
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
    }


def _sizes(method: Method, scenario: Scenario) -> dict[str, Any]:
    """Parameters, and the bytes that are kept from task to task."""
    parts = networks(method)
    parameters = {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}
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
