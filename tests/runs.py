"""Helpers for tests of whole runs: small configurations, and comparing two runs bit by bit."""

import json

import torch

from etag.experiments.config import resolve
from etag.experiments.run_directory import RunDirectory

SMALL = {
    "split": "b2-2x1",
    "data.train_per_class": 20,
    "data.test_per_class": 8,
    "model.width": 4,
    "train.epochs": 2,
    "train.batch_size": 16,
}
QUICK_GENERATOR = {"method.generator.train.epochs": 2, "method.generator.feature_passes": 2}


def small_config(method, **more):
    """The configuration of a run of seconds: 2 + 1 + 1 classes of digits."""
    quick = QUICK_GENERATOR if method == "etag" else {}
    return resolve("digits", {"method": method, **SMALL, **quick, **more})


def tensors(method):
    """Everything a method stores, by role and name."""
    return {f"{role}.{name}": value for role, part in method.parts.items() for name, value in part.state_dict().items()}


def outcome(path):
    """All that must be the same: every number that is not a time, every logged step, every tensor."""
    directory = RunDirectory(path)
    metrics = json.loads(directory.metrics.read_text())
    keys = ("accuracy_matrix", "task_aware_matrix", "confusion", "A_weighted", "F_paper", "stored_bytes")
    lines = [json.loads(line) for line in directory.steps.read_text().splitlines()]
    logged = [(line["task"], line["phase"], line["step"], line["lr"], line["terms"]) for line in lines]
    return {key: metrics[key] for key in keys}, logged, tensors(directory.model.load_method()[0])


def assert_same(left, right):
    """Fail unless two runs have the same outcome."""
    (numbers, logged, weights), (other_numbers, other_logged, other_weights) = outcome(left), outcome(right)
    assert numbers == other_numbers
    assert logged == other_logged
    assert weights.keys() == other_weights.keys()
    different = [name for name in weights if not torch.equal(weights[name], other_weights[name])]
    assert different == []
