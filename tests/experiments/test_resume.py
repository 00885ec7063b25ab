"""A run that is cut off goes on after its last finished task, to the same result."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from etag.core.errors import EtagError
from etag.experiments.config import resolve
from etag.experiments.run import run
from etag.experiments.store import RunDirectory, tensors


@pytest.fixture
def cut_after(monkeypatch):
    """Interrupt runs as soon as so many tasks are kept; None lets them go to their end."""
    keep = RunDirectory.keep

    def set_limit(limit):
        def stop(self, method, record):
            keep(self, method, record)
            if limit is not None and len(record.evaluations) >= limit:
                raise KeyboardInterrupt

        monkeypatch.setattr(RunDirectory, "keep", stop)

    return set_limit


def same(left, right):
    """Equal in every number that is not a time, and in every weight."""
    first, second = (json.loads(RunDirectory(path).metrics.read_text()) for path in (left, right))
    for key in ("accuracy_matrix", "task_aware_matrix", "confusion", "A_weighted", "F_paper", "stored_bytes"):
        assert first[key] == second[key]
    weights = [tensors(RunDirectory(path).load_model()) for path in (left, right)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    steps = [RunDirectory(path).steps.read_text().splitlines() for path in (left, right)]
    told = [
        [(line["task"], line["phase"], line["step"], line["terms"]) for line in map(json.loads, s)] for s in steps
    ]
    assert told[0] == told[1]


# one of each kind of memory
@pytest.mark.parametrize("method", ["fine", "joint", "etag", "eewc", "il2m", "podnet", "pass", "b4"])
def test_a_run_cut_after_each_task_ends_as_one_that_never_was(small, method, tmp_path, cut_after):
    config = small(method, split="b2-2x2")
    run(config, tmp_path / "whole")
    for tasks in (1, 2):
        cut_after(tasks)
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "cut")
        kept = sorted(path.name for path in (tmp_path / "cut").glob("state-*"))
        assert kept == [f"state-{tasks}.safetensors"], "one file, whatever the number of tasks"
    cut_after(None)
    run(config, tmp_path / "cut")
    same(tmp_path / "whole", tmp_path / "cut")
    assert {path.name for path in (tmp_path / "cut").iterdir()} == {
        path.name for path in (tmp_path / "whole").iterdir()
    }


def test_the_release_variant_with_its_dropped_auxiliary_goes_on_too(small, tmp_path, cut_after):
    more = {"method.embedding.num_aux": 4, "method.embedding.aux_new": "fixed", "method.head": "fixed"}
    config = small("etag", **more)
    run(config, tmp_path / "whole")
    cut_after(2)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "cut")
    cut_after(None)
    run(config, tmp_path / "cut")
    same(tmp_path / "whole", tmp_path / "cut")


def test_a_finished_run_is_not_run_again(small, tmp_path, capsys):
    config = small("fine")
    first = run(config, tmp_path / "run")
    stamp = (tmp_path / "run" / "metrics.json").stat().st_mtime_ns
    assert run(config, tmp_path / "run", verbose=True) == first
    assert (tmp_path / "run" / "metrics.json").stat().st_mtime_ns == stamp
    assert "holds this very run, finished" in capsys.readouterr().out


def test_another_configuration_is_refused_with_every_difference(small, tmp_path, cut_after):
    cut_after(1)
    with pytest.raises(KeyboardInterrupt):
        run(small("fine"), tmp_path / "run")
    other = small("fine", seed=3, **{"train.epochs": 9})
    with pytest.raises(
        EtagError, match=r"unfinished run .*seed is 0 there and 3 here; train.epochs is 2 there and 9 here"
    ):
        run(other, tmp_path / "run")
    cut_after(None)
    run(small("fine", **{"runtime.threads": 1}), tmp_path / "run")  # where it computes may change


@pytest.mark.parametrize("damage", ["progress", "state", "no state"])
def test_what_can_not_be_gone_on_with_is_told_in_words(small, damage, tmp_path, cut_after):
    cut_after(1)
    with pytest.raises(KeyboardInterrupt):
        run(small("fine"), tmp_path / "run")
    file = tmp_path / "run" / ("progress.json" if damage == "progress" else "state-1.safetensors")
    file.unlink() if damage == "no state" else file.write_bytes(file.read_bytes()[:50])
    cut_after(None)
    with pytest.raises(EtagError, match=r"cannot be gone on with .*: begin anew with --restart"):
        run(small("fine"), tmp_path / "run")
    run(small("fine"), tmp_path / "run", restart=True)


def test_a_killed_command_goes_on_when_it_is_given_again(tmp_path):
    command = [sys.executable, "-m", "etag.cli", "run", "--method", "etag", "--out", "killed"]
    settings = {"split": "b2-2x1", "model.width": 4, "train.epochs": 4, "data.train_per_class": 20}
    settings |= {"data.test_per_class": 8, "method.generator.train.epochs": 2}
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (tmp_path / "killed" / "progress.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "metrics.json").exists()
    again = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert "tasks are learned already; going on." in again.stdout
    torch.set_num_threads(1)
    run(resolve("digits", {"method": "etag", **settings}), tmp_path / "whole")
    same(tmp_path / "whole", tmp_path / "killed")
