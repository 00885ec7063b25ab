"""A run that was interrupted is resumed after its last finished task, to the same result."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.runs import assert_same

from etag.core.errors import EtagError
from etag.experiments.config import resolve
from etag.experiments.run import run
from etag.learner.model_directory import ModelDirectory


@pytest.fixture
def cut_after(monkeypatch):
    """Interrupt runs as soon as so many tasks are saved; None lets them run to their end."""
    save = ModelDirectory.save

    def set_limit(limit):
        def stop(self, method, about, keep):
            save(self, method, about, keep)
            if limit is not None and len(about.history) >= limit:
                raise KeyboardInterrupt

        monkeypatch.setattr(ModelDirectory, "save", stop)

    return set_limit


# one of each kind of memory
KINDS = [
    "etag",
    "il2m",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("fine", "joint", "eewc", "podnet", "pass", "b4")),
]


@pytest.mark.parametrize("method", KINDS)
def test_a_run_cut_after_each_task_ends_as_one_that_was_never_cut(small, method, tmp_path, cut_after):
    config = small(method, split="b2-2x2")
    run(config, tmp_path / "whole")
    for tasks in (1, 2):
        cut_after(tasks)
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "cut")
        assert ModelDirectory(tmp_path / "cut").versions == [tasks], "one version, whatever the number of tasks"
    cut_after(None)
    run(config, tmp_path / "cut")
    assert_same(tmp_path / "whole", tmp_path / "cut")
    assert {path.name for path in (tmp_path / "cut").iterdir()} == {
        path.name for path in (tmp_path / "whole").iterdir()
    }


@pytest.mark.slow
def test_the_release_variant_with_its_dropped_auxiliary_is_resumed_too(small, tmp_path, cut_after):
    more = {"method.embedding.last_stage": True, "method.fidelity.aux_classes": "all", "method.head.growth": "fixed"}
    config = small("etag", **more)
    run(config, tmp_path / "whole")
    cut_after(2)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "cut")
    cut_after(None)
    run(config, tmp_path / "cut")
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_a_finished_run_is_not_run_again(small, tmp_path, capsys):
    config = small("fine")
    first = run(config, tmp_path / "run")
    stamp = (tmp_path / "run" / "metrics.json").stat().st_mtime_ns
    assert run(config, tmp_path / "run", verbose=True) == first
    assert (tmp_path / "run" / "metrics.json").stat().st_mtime_ns == stamp
    assert "already contains this run, finished" in capsys.readouterr().out


def test_another_configuration_is_refused_with_every_difference(small, tmp_path, cut_after):
    cut_after(1)
    with pytest.raises(KeyboardInterrupt):
        run(small("fine"), tmp_path / "run")
    other = small("fine", seed=3, **{"train.epochs": 9})
    with pytest.raises(
        EtagError,
        match=r"unfinished run .*seed is 0 in .* and 3 in this command; train.epochs is 2 in .* and 9 in this",
    ):
        run(other, tmp_path / "run")
    cut_after(None)
    run(small("fine", **{"runtime.threads": 1}), tmp_path / "run")  # where it computes may change


def version_files(path):
    """The description and the backbone's tensor file of the version in force."""
    about = path / "versions" / (path / "current").read_text().split()[0] / "about.json"
    name = json.loads(about.read_text())["tensors"]["classifier"]["backbone"]
    return about, path / "tensors" / f"{name}.safetensors"


@pytest.mark.parametrize("damage", ["about", "tensors", "no tensors"])
def test_what_cannot_be_resumed_is_reported_in_one_sentence(small, damage, tmp_path, cut_after):
    cut_after(1)
    with pytest.raises(KeyboardInterrupt):
        run(small("fine"), tmp_path / "run")
    about, backbone = version_files(tmp_path / "run")
    file = about if damage == "about" else backbone
    file.unlink() if damage == "no tensors" else file.write_bytes(file.read_bytes()[:50])
    cut_after(None)
    with pytest.raises(EtagError, match=r"cannot be resumed: .* Start again with --restart"):
        run(small("fine"), tmp_path / "run")
    run(small("fine"), tmp_path / "run", restart=True)


@pytest.mark.slow
def test_a_killed_command_is_resumed_when_it_is_given_again(tmp_path):
    command = [sys.executable, "-m", "etag.cli", "run", "--method", "etag", "--out", "killed"]
    settings = {"split": "b2-2x1", "model.width": 4, "train.epochs": 4, "data.train_per_class": 20}
    settings |= {"data.test_per_class": 8, "method.generator.train.epochs": 2}
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (tmp_path / "killed" / "current").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "metrics.json").exists()
    again = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert "tasks are learned already; resuming." in again.stdout
    torch.set_num_threads(1)
    run(resolve("digits", {"method": "etag", **settings}), tmp_path / "whole")
    assert_same(tmp_path / "whole", tmp_path / "killed")


def test_a_run_killed_before_its_first_version_is_resumed(small, tmp_path, monkeypatch):
    """Even where the process came no further than writing config.yaml."""
    config = small("fine")
    mkdir = Path.mkdir

    def dies(path, *arguments, **named):
        if path.name == "versions":
            raise KeyboardInterrupt
        mkdir(path, *arguments, **named)

    monkeypatch.setattr(Path, "mkdir", dies)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run")
    monkeypatch.undo()
    assert (tmp_path / "run" / "config.yaml").is_file()
    run(config, tmp_path / "run")
    run(config, tmp_path / "whole")
    assert_same(tmp_path / "whole", tmp_path / "run")


def test_a_result_that_was_saved_but_not_put_in_force_leaves_nothing_behind(small, tmp_path, monkeypatch):
    config, replace = small("fine"), os.replace

    def dies(source, target):
        replace(source, target)
        if Path(target) == tmp_path / "run" / "versions" / "3":
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", dies)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run")
    monkeypatch.undo()
    assert ModelDirectory(tmp_path / "run").version == 2
    run(config, tmp_path / "run")
    run(config, tmp_path / "whole")
    assert_same(tmp_path / "whole", tmp_path / "run")
    directory = ModelDirectory(tmp_path / "run")
    assert directory.versions == [directory.version]
    assert directory.about().pinned
    assert len(list((tmp_path / "run" / "tensors").iterdir())) == len(list((tmp_path / "whole" / "tensors").iterdir()))


@pytest.mark.parametrize(("features", "tasks"), [("none", []), ("last", [3]), ("every", [1, 2, 3])])
def test_features_are_saved_as_asked_also_by_a_resumed_run(small, features, tasks, tmp_path, cut_after):
    config = small("fine", **{"evaluation.features": features})
    whole = run(config, tmp_path / "whole")
    for limit in (1, 2):
        cut_after(limit)
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "cut")
    cut_after(None)
    assert run(config, tmp_path / "cut")["confusion"] == whole["confusion"]
    names = [f"task-{task:03}.npz" for task in tasks]
    for path in (tmp_path / "whole", tmp_path / "cut"):
        assert sorted(file.name for file in path.glob("features/*")) == names
    for name in names:
        left, right = (np.load(tmp_path / which / "features" / name) for which in ("whole", "cut"))
        assert np.array_equal(left["features"], right["features"])
        assert np.array_equal(left["labels"], right["labels"])
