"""Run directories with random numbers, in the format of a real run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etag.evaluation.metrics import accuracy_after_each_task, summary

LEFT = {"fine": 0.25, "etag": 0.9, "joint": 0.985}  # share of the accuracy on a task that is left after one more task

MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(folder: str = "run", **choices: Any) -> Path:
        return write_run(tmp_path / folder, **choices)

    return make


def write_run(
    path: Path,
    method: str = "etag",
    split: str = "b5-5x1",
    classes: tuple[int, ...] = (5, 1, 1, 1, 1, 1),
    seed: int = 0,
    names: list[str] | None = None,
    optional: bool = True,
    **changes: Any,
) -> Path:
    """A run directory; `changes` replace values of `metrics.json`; None removes one."""
    rng = np.random.default_rng([seed, *method.encode()])
    metrics = random_metrics(rng, method, split, classes, seed, names) | changes
    path.mkdir(parents=True)
    stored = {key: value for key, value in metrics.items() if value is not None}
    (path / "metrics.json").write_text(json.dumps(stored))
    (path / "config.yaml").write_text(f"method:\n  name: {method}\nseed: {seed}\nnote: a <tag> & more\n")
    if optional:
        (path / "steps.jsonl").write_text("".join(random_steps(rng, len(classes))))
    return path


def random_metrics(
    rng: np.random.Generator, method: str, split: str, classes: tuple[int, ...], seed: int, names: list[str] | None
) -> dict[str, Any]:
    tasks, total = len(classes), sum(classes)
    rows = [[(0.97 - 0.005 * u) * LEFT.get(method, 0.8) ** (t - u) for u in range(t + 1)] for t in range(tasks)]
    rows = [[float(np.clip(a + rng.normal(0, 0.01), 0, 1)) for a in row] for row in rows]
    task_aware = [[a + 0.9 * (1 - a) for a in row] for row in rows]
    seconds = rng.uniform(8, 12, tasks) * np.asarray(classes)
    parts = {"backbone": 174_432, "head": 64 * total + total, "auxiliaries": 402_110, "generator": 88_064}
    stored = {name: 4 * count for name, count in parts.items()}
    return {
        "method": method,
        "data": "digits",
        "split": split,
        "seed": seed,
        "accuracy_matrix": [row + [None] * (tasks - len(row)) for row in rows],
        "task_aware_matrix": [row + [None] * (tasks - len(row)) for row in task_aware],
        "classes_per_task": list(classes),
        "class_names": names or [str(number) for number in range(total)],
        **summary(rows, classes),
        "step_accuracy_weighted": accuracy_after_each_task(rows, classes, weighted=True),
        "step_accuracy_plain": accuracy_after_each_task(rows, classes, weighted=False),
        "train_seconds": seconds.tolist(),
        "test_seconds": (seconds / 40).tolist(),
        "parameters": sum(parts.values()),
        "parameters_by_part": parts,
        "stored_bytes": sum(stored.values()),
        "stored_bytes_by_part": stored,
        "confusion": random_confusion(rng, rows[-1], classes),
        "versions": {"etag": "0.1.0", "python": "3.11.7", "torch": "2.9.0+cpu"},
        "machine": "Linux x86_64, 2 cores, cpu",
        "date": "2025-03-01T12:00:00+00:00",
    }


def random_confusion(
    rng: np.random.Generator, accuracies: list[float], classes: tuple[int, ...], images: int = 50
) -> list[list[int]]:
    """Wrong predictions fall on all classes, on those of the last task most often."""
    pull = np.repeat(np.linspace(0.2, 1, len(classes)), classes) ** 3
    rows = []
    for own, accuracy in enumerate(np.repeat(accuracies, classes)):
        wrong = pull * rng.gamma(0.3, size=len(pull)) + 1e-9
        wrong[own] = 0
        chances = (1 - accuracy) * wrong / max(wrong.sum(), 1e-9)
        chances[own] = max(0, 1 - chances.sum())
        rows.append(rng.multinomial(images, chances).tolist())
    return rows


def write_features(run: Path, task: int, classes: int, images: int = 2, size: int = 5) -> Path:
    """Save features of `images` per class, as a run does after a task (from 1)."""
    rng = np.random.default_rng([task, classes])
    labels = np.repeat(np.arange(classes), images)
    features = 20 * rng.normal(size=(classes, size))[labels] + rng.normal(size=(len(labels), size))
    file = run / "features" / f"task-{task:03}.npz"
    file.parent.mkdir(exist_ok=True)
    np.savez(file, features=features.astype(np.float32), labels=labels.astype(np.int64))
    return file


def random_steps(rng: np.random.Generator, tasks: int, steps: int = 400) -> list[str]:
    lines = []
    for task in range(tasks):
        for phase, terms in (
            ("solver", ["ce", "aux_ce", "aux_kl", "l2", "replay"]),
            ("generator", ["reconstruction", "kl"]),
        ):
            for step in range(10, steps + 1, 10):
                used = terms[: 2 if task == 0 else None]
                values = {t: (0.5**i) * 2 * step**-0.4 * rng.uniform(0.8, 1.2) for i, t in enumerate(used)}
                line = {"task": task, "phase": phase, "step": step, "epoch": step // 40, "lr": 1e-3, "terms": values}
                lines.append(json.dumps(line | {"images_per_second": 800.0}) + "\n")
    return lines
