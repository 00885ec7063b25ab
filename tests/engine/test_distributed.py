"""Two processes through the same code path as one: the contract of one module per phase, under DDP."""

import json
import os
import signal
import subprocess
import sys
import time
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
from etag.learner.config import create_method
from etag.learner.learner import Learner
from etag.learner.model_directory import ModelDirectory

SETTINGS = {
    "data.train_per_class": 24,
    "data.test_per_class": 6,
    "model.width": 4,
    "train.batch_size": 16,
    "train.steps": 3,
    "train.schedule": "constant",
    "train.optimizer": "sgd",  # Adam blows rounding errors of tiny gradients up to the size of a step
    "train.lr": 1e-2,
}
GENERATOR = {"train": {"optimizer": "sgd", "lr": 1e-3, "steps": 6}, "feature_passes": 2}
EXEMPLARS = {"method.exemplars.per_class": 6}
# one of each kind of phase, data pass, head and memory
METHODS = {
    # twenty steps; at a higher rate rounding errors grow from step to step
    "etag": {
        "method.generator": GENERATOR | {"train": GENERATOR["train"] | {"steps": 20, "lr": 2e-4}},
        "train.steps": 20,
        "train.lr": 1e-4,
    },
    "gfr": {"method.generator": GENERATOR | {"kind": "wgan", "last_task": True}},
    "ewc": {"train.lr": 1e-4},
    "lwm": {"method.stage": 2},
    "elucir": EXEMPLARS | {"method.ranking_weight": 0},  # a mean over the old images of a process's own share
    "podnet": EXEMPLARS | {"method.balanced.optimizer": "sgd", "method.balanced.steps": 3},
    "il2m": EXEMPLARS,
    "gc": {"method.features.passes": 2, "method.generator.train": {"optimizer": "sgd", "steps": 6, "batch_size": 8}},
    "bir": {
        "method.features.passes": 2,
        "method.generator": {"hidden": 32, "train": {"optimizer": "sgd", "steps": 6, "batch_size": 8}},
    },
    "abd": {
        "method.generator": {
            "latent": 8,
            "statistics": 0,  # each process knows its own share's only
            "balance": 0,
            "train": {"optimizer": "sgd", "steps": 3, "batch_size": 8},
        }
    },
    "pass": {"method.l2_reduction": "mean_norm", "method.drift": {"map": "least_squares", "passes": 2}},
    "ldc": {"method.drift": {"passes": 2, "train": {"optimizer": "sgd", "steps": 6, "batch_size": 8}}},
    "ncm": {},
    "slda": {},
    "ridge": {},
    "ranpac": {"method.projection": 32},
    "fecam": {},
    "fetril": {"method.head_train": {"optimizer": "sgd", "steps": 6, "batch_size": 8}},
    "efc": {"method.rebalance": {"feature_passes": 2, "train": {"epochs": 2, "batch_size": 16}}},
}


class FrozenStatistics(Engine):
    """BatchNorm statistics are the one thing that depends on how a batch is shared out. And the student first leaves
    its teacher a little: where they are equal, the gradient of the norm of their difference is rounding errors."""

    def train(self, phase, checkpointer=None):
        with torch.no_grad():
            for parameter in (parameter for group in phase.groups for parameter in group.parameters):
                parameter *= 0.99
        super().train(replace(phase, batch_norm="frozen"), checkpointer)


def tensors(method):
    """Everything that a method stores from task to task, by role and name."""
    named = ((role, part.state_dict()) for role, part in method.parts.items())
    return {f"{role}.{name}": value for role, state in named for name, value in state.items()}


def learn(runtime: Runtime, folder: Path) -> None:
    """Two tasks of each, all phases and passes: what is stored, checked to be the same in every process."""
    torch.set_num_threads(1)
    for name, options in METHODS.items():
        config = resolve(given={"method": name, "split": "b2-1x2", **SETTINGS, **options})
        scenario, preprocess = build_scenario(config.data, config.split, 0)
        method = create_method(config, runtime.placement, preprocess, channels=1, classes=4)
        learner = Learner(method, runtime, engine=FrozenStatistics(runtime))
        for task in scenario:
            learner.train(task)
        stored = tensors(method)
        everyone = runtime.gather([{key: value.flatten() for key, value in stored.items()}])[0]
        for key, value in everyone.items():
            copies = value.view(runtime.placement.world, -1)
            assert torch.equal(copies[0], copies[-1]), f"{name}: {key} differs between processes"
        if runtime.leader:
            np.savez(folder / f"{name}.npz", **{key: value.numpy() for key, value in stored.items()})


@pytest.fixture(scope="module")
def options():
    return RuntimeOptions(accelerator="cpu", devices=2)


@pytest.mark.slow
def test_two_processes_with_half_the_batch_equal_one(options, tmp_path):
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    launch(RuntimeOptions(accelerator="cpu"), learn, alone)
    launch(options, learn, together, strategy="ddp_spawn")
    for name in METHODS:
        one, two = (np.load(folder / f"{name}.npz") for folder in (alone, together))
        assert one.keys() == two.keys()
        for key, value in one.items():
            np.testing.assert_allclose(value, two[key], rtol=1e-4, atol=1e-6, err_msg=f"{name}: {key}")


def test_a_whole_run_in_two_processes_writes_one_run_directory(options, tmp_path):
    config = resolve(given={"method": "etag", "split": "b2-1x2", **SETTINGS, **METHODS["etag"], "runtime.devices": 2})
    config = config.model_copy(update={"runtime": options})
    metrics = run(config, tmp_path / "run", strategy="ddp_spawn")
    assert len(metrics["accuracy_matrix"]) == 2
    assert sum(map(sum, metrics["confusion"])) == 4 * 6, "every test image is evaluated once"
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {
        "metrics.json",
        "current",
        "versions",
        "tensors",
        "steps.jsonl",
    }


# -- whole commands in two processes: killed, asked to stop, started by torchrun ---------------------------------

LONG = {
    "split": "b2-1x2",
    "data.train_per_class": 24,
    "data.test_per_class": 6,
    "model.width": 4,
    "train.batch_size": 8,
    "train.epochs": 12,
    "method.generator.train.epochs": 12,
    "method.generator.feature_passes": 2,
    "runtime.accelerator": "cpu",
    "runtime.checkpoint_seconds": 0,
}


def start(out, *more, launcher=(sys.executable, "-m", "etag.cli")):
    words = ["run", "digits", "--method", "etag", "--out", str(out), *more]
    for key, value in LONG.items():
        words += ["--set", f"{key}={value}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*launcher, *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process):
    said = process.communicate(timeout=300)[1]
    return process.returncode, said


def wait_for_lines(out, count):
    steps = out / "steps.jsonl"
    deadline = time.monotonic() + 120
    while not steps.is_file() or len(steps.read_text().splitlines()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    """The run in two processes that nobody disturbs."""
    out = tmp_path_factory.mktemp("twin") / "run"
    code, said = finish(start(out, "--devices", "2"))
    assert code == 0, said
    return out


def assert_same(left, right):
    one, two = (json.loads((path / "metrics.json").read_text()) for path in (left, right))
    assert one["accuracy_matrix"] == two["accuracy_matrix"]
    weights, others = (tensors(ModelDirectory(path).load_method()[0]) for path in (left, right))
    for name, value in weights.items():
        assert torch.equal(value, others[name]), f"{name} differs"


@pytest.mark.slow
def test_two_processes_killed_again_and_again_end_as_their_twin(twin, tmp_path):
    out = tmp_path / "run"
    for lines in (2, 9, 14):  # in the base task's solver, its generator, and the second task
        process = start(out, "--devices", "2")
        wait_for_lines(out, lines)
        os.killpg(process.pid, signal.SIGKILL)
        assert finish(process)[0] == -signal.SIGKILL
        assert not (out / "metrics.json").is_file()
    code, said = finish(start(out, "--devices", "2"))
    assert code == 0, said
    assert_same(twin, out)


@pytest.mark.slow
def test_asked_to_stop_two_processes_save_and_stop_at_the_same_place(twin, tmp_path):
    out = tmp_path / "run"
    process = start(out, "--devices", "2")
    wait_for_lines(out, 3)
    process.send_signal(signal.SIGTERM)  # only the leader hears it
    code, said = finish(process)
    assert code == 143, said
    assert "interrupted" in said
    assert list(out.glob("unfinished/checkpoints/*.json"))
    code, said = finish(start(out, "--devices", "2"))
    assert code == 0, said
    assert_same(twin, out)


@pytest.mark.slow
def test_torchrun_starts_them_as_well(twin, tmp_path):
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "etag.cli")
    code, said = finish(start(tmp_path / "run", launcher=launcher))
    assert code == 0, said
    assert_same(twin, tmp_path / "run")
