"""Real processes are killed; every run must end as its uninterrupted twin. Run by `make crash-test`."""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from etag.experiments.run_directory import RunDirectory

CHILD = Path(__file__).parent / "child.py"
POINTS = (
    "between write and fsync",
    "between fsync and rename",
    "after rename",
    "in a data pass",
    "in evaluation",
    "in the evaluation pass",
    "before checkpoints are removed",
    "before a version is saved",
    "before old versions are removed",
)
SETTINGS = {
    "split": "b4-3x2",
    "data.train_per_class": 30,
    "data.test_per_class": 10,
    "model.width": 4,
    "train.epochs": 12,
    "train.batch_size": 8,
    "runtime.checkpoint_seconds": 0,
}
OWN = {
    "etag": {"method.generator.train.epochs": 4, "method.generator.feature_passes": 2},
    "podnet": {"method.balanced.batch_size": 8},
}


NO_PASSES = ("fine", "lwm")  # methods without data passes, except that of the evaluation


def start(method, out, point="none", count=0):
    words = ["run", "digits", "--method", method, "--out", str(out)]
    for key, value in (SETTINGS | OWN.get(method, {})).items():
        words += ["--set", f"{key}={value}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(CHILD), point, str(count), *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process):
    """Wait for the end; returns whether it was a good one. Only a kill is excused."""
    errors = process.communicate()[1]
    if process.returncode not in (0, -9):
        raise AssertionError(f"exit code {process.returncode}: {errors}")
    return process.returncode == 0


def outcome(path):
    directory = RunDirectory(path)
    metrics = json.loads(directory.metrics.read_text())
    lines = [json.loads(line) for line in directory.steps.read_text().splitlines()]
    logged = [(line["task"], line["phase"], line["step"], line["terms"]) for line in lines]
    return (metrics["accuracy_matrix"], metrics["confusion"], logged), stored(directory)


def stored(directory):
    """Every tensor of the model, by role and name. Checksums and what is left on disk are checked too."""
    method, _ = directory.model.load_method()
    assert directory.model.versions == [directory.model.version]
    assert directory.model.about().pinned
    assert not directory.model.unfinished.exists(), "checkpoints are left"
    files = {path.stem for path in (directory.path / "tensors").iterdir()}
    about = json.loads((directory.versions / str(directory.model.version) / "about.json").read_text())
    assert files == {name for part in about["tensors"].values() for name in part.values()}, "files are left"
    return {f"{role}.{name}": value for role, part in method.parts.items() for name, value in part.state_dict().items()}


def assert_same(left, right):
    (numbers, weights), (others, other_weights) = outcome(left), outcome(right)
    assert numbers == others, "metrics or logged steps differ"
    assert weights.keys() == other_weights.keys()
    for name, value in weights.items():
        assert torch.equal(value, other_weights[name]), f"{name} differs"


def place(out):
    """Where a killed run was, as far as its log tells."""
    steps = out / "steps.jsonl"
    lines = [line for line in steps.read_text().splitlines() if line.endswith("}")] if steps.is_file() else []
    if not lines:
        return "before the first logged step"
    last = json.loads(lines[-1])
    return f"after task {last['task']} {last['phase']} step {last['step']}"


def killed_at_random(method, folder, kills, chance):
    """Kill runs of a method until there were so many kills; each run must end as the twin."""
    twin, done, number = folder / f"{method}-twin", 0, 0
    began = time.perf_counter()
    assert ended(start(method, twin))
    whole = time.perf_counter() - began
    while done < kills:
        number += 1
        out = folder / f"{method}-{number}"
        while True:
            began = time.perf_counter()
            process = start(method, out)
            try:
                process.wait(chance.uniform(0.3, 1) * whole if done < kills else None)
            except subprocess.TimeoutExpired:
                process.kill()
                ended(process)
                done += 1
                print(f"{method}: kill {done} {place(out)}", flush=True)
                continue
            assert ended(process)
            whole = min(whole, time.perf_counter() - began)  # the machine may have become faster
            break
        assert_same(twin, out)
        print(f"{method}: run {number} ended as its twin", flush=True)
    return done


def killed_at_points(method, folder):
    """One kill at each failpoint that the method reaches; the run must end as the twin. How many there were."""
    points = [point for point in POINTS if point != "in a data pass" or method not in NO_PASSES]
    twin, out = folder / f"{method}-twin", folder / f"{method}-points"
    if not (twin / "metrics.json").is_file():
        assert ended(start(method, twin))
    for number, point in enumerate(points):
        if ended(start(method, out, point, 1 if point.startswith("before") else 1 + number % 2)):
            raise AssertionError(f"{point} was never reached")
        print(f"{method}: killed {point}, {place(out)}", flush=True)
    assert ended(start(method, out))
    assert_same(twin, out)
    print(f"{method}: ended as its twin after a kill at each of {len(points)} points", flush=True)
    return len(points)


def main():
    chance, total, points = random.Random(0), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for method in ("etag", "elucir", "lwm", "podnet"):
            total += killed_at_random(method, Path(folder), 11, chance)
            points += killed_at_points(method, Path(folder))
    print(f"{total} kills at random moments, {points} at failpoints: every result as if there had been none")


if __name__ == "__main__":
    main()
