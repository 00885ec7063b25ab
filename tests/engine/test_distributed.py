"""Two processes through the same code path as one: the contract of one module per phase, under DDP."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from etag.core.options import RuntimeOptions
from etag.data.scenario import build_scenario
from etag.engine.engine import Engine
from etag.engine.runtime import Runtime, launch
from etag.experiments.config import resolve
from etag.experiments.run import run
from etag.experiments.store import create_method, tensors

SETTINGS = {
    "data.train_per_class": 24,
    "data.test_per_class": 6,
    "model.width": 4,
    "train.batch_size": 16,
    "train.steps": 3,
    "train.schedule": "constant",
    "train.optimiser": "sgd",  # Adam blows rounding errors of tiny gradients up to the size of a step
    "train.lr": 1e-2,
    "method.generator.train.optimiser": "sgd",
    "method.generator.train.lr": 1e-3,
    "method.generator.train.steps": 3,
    "method.generator.feature_passes": 2,
}


class FrozenStatistics(Engine):
    """BatchNorm statistics are the one thing that depends on how a batch is shared out."""

    def train(self, phase):
        super().train(replace(phase, batch_norm="frozen"))


def learn(runtime: Runtime, file: Path) -> None:
    """Two tasks of eTag, all phases and sweeps: the weights, checked to be the same in every process."""
    torch.set_num_threads(1)
    config = resolve(given={"method": "etag", "split": "b2-1x2", **SETTINGS})
    scenario, preprocess = build_scenario(config.data, config.split, 0)
    method = create_method(config, runtime.placement, preprocess, channels=1, classes=4)
    for task in scenario:
        method.begin_task(task)
        FrozenStatistics(runtime).execute(method.phases(task))
    weights = tensors(method)
    everyone = runtime.gather_rows([{name: value.flatten() for name, value in weights.items()}])[0]
    for name, value in everyone.items():
        copies = value.view(runtime.placement.world, -1)
        assert torch.equal(copies[0], copies[-1]), f"{name} differs between processes"
    if runtime.leader:
        np.savez(file, **{name: value.numpy() for name, value in weights.items()})


@pytest.fixture(scope="module")
def options():
    return RuntimeOptions(accelerator="cpu", devices=2)


def test_two_processes_with_half_the_batch_equal_one(options, tmp_path):
    launch(RuntimeOptions(accelerator="cpu"), learn, tmp_path / "alone.npz")
    launch(options, learn, tmp_path / "together.npz", strategy="ddp_spawn")
    alone, together = np.load(tmp_path / "alone.npz"), np.load(tmp_path / "together.npz")
    assert alone.keys() == together.keys()
    for name, value in alone.items():
        np.testing.assert_allclose(value, together[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_whole_run_in_two_processes_writes_one_run_directory(options, tmp_path):
    config = resolve(given={"method": "etag", "split": "b2-1x2", **SETTINGS, "runtime.devices": 2})
    config = config.model_copy(update={"runtime": options})
    metrics = run(config, tmp_path / "run", strategy="ddp_spawn")
    assert len(metrics["accuracy_matrix"]) == 2
    assert sum(map(sum, metrics["confusion"])) == 4 * 6, "every test image is judged once"
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {
        "metrics.json",
        "model.safetensors",
        "steps.jsonl",
    }
