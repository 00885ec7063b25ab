"""A run that is killed inside a task is resumed to the same result, bit for bit, for every method and moment."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from tests.runs import assert_same

from etag.engine import engine, runtime, training
from etag.experiments.run import run

OFTEN = {
    "split": "b2-1x2",
    "runtime.checkpoint_seconds": 0,
    "train.epochs": 4,
    "train.batch_size": 8,
    "data.train_per_class": 14,
}
GENERATOR = {"method.generator.train.epochs": 3, "method.generator.feature_passes": 2}
SMALL = {
    "gc": {"method.features.passes": 2, "method.generator.train.steps": 6},
    "bir": {"method.features.passes": 2, "method.generator": {"hidden": 32, "train": {"steps": 6, "batch_size": 8}}},
    "abd": {"method.generator": {"latent": 8, "train": {"steps": 8, "batch_size": 8}}},
    "ldc": {"method.drift": {"passes": 2, "train": {"steps": 7, "batch_size": 8}}},
    "efc": {"method.rebalance": {"feature_passes": 2, "train": {"epochs": 3, "batch_size": 16}}},
}
HAS_GENERATOR = ("gfr", "egfr", "etag", "b0", "b1", "b2", "b3", "dgr", "edgr", "tag")


class Cut(Exception):
    """The process dies here."""


@pytest.fixture
def cut_at(monkeypatch):
    """Let the process die before the n-th step or batch of a data pass, counted over one call of `run`."""
    monkeypatch.setattr(training, "LOG_EVERY", 3)
    step, results = training.Training._step, engine.Engine._results
    left = [0]

    def count():
        left[0] -= 1
        if left[0] == 0:
            raise Cut

    def counted_step(*arguments):
        count()
        return step(*arguments)

    def counted_results(*arguments):
        for found in results(*arguments):
            count()
            yield found

    monkeypatch.setattr(training.Training, "_step", counted_step)
    monkeypatch.setattr(engine.Engine, "_results", counted_results)

    def set_limit(steps):
        left[0] = steps

    return set_limit


def cut_until_done(config, path, cut_at, steps):
    """Call `run` until it ends, cutting it after so many steps each time; returns the number of calls."""
    for call, limit in enumerate([*steps, 0], start=1):
        cut_at(limit)
        try:
            run(config, path)
        except Cut:
            continue
        return call
    raise AssertionError("it never ended")


def test_a_run_cut_five_times_ends_as_one_that_was_never_cut(small, one_of_each_kind, tmp_path, cut_at):
    name = one_of_each_kind
    own = GENERATOR if name in HAS_GENERATOR else SMALL.get(name) or SMALL.get(name.removeprefix("e"), {})
    config = small(name, **OFTEN, **own)
    run(config, tmp_path / "whole")
    chance = random.Random(name)
    calls = cut_until_done(config, tmp_path / "cut", cut_at, [chance.randint(4, 9) for _ in range(5)])
    assert calls > 2
    assert_same(tmp_path / "whole", tmp_path / "cut")
    assert not (tmp_path / "cut" / "unfinished").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"train.schedule": "plateau", "train.validation": 0.2, "train.patience": 1},
        pytest.param(
            {"train.schedule": "plateau", "train.patience": 1, "train.optimizer": "sgd", "train.lr": 0.05},
            marks=pytest.mark.slow,
        ),
        pytest.param({"train.schedule": "cosine", "train.steps": 11}, marks=pytest.mark.slow),
    ],
    ids=["plateau", "plateau on the training loss", "steps"],
)
def test_other_schedules_are_resumed_too(small, options, tmp_path, cut_at):
    config = small("fine", **(OFTEN | {"train.epochs": 8} | options))
    run(config, tmp_path / "whole")
    cut_until_done(config, tmp_path / "cut", cut_at, [5, 6, 7, 8, 9, 10])
    assert_same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("trained", [pytest.param("all", marks=pytest.mark.slow), "head"])
def test_a_scale_of_features_and_a_computed_head_are_resumed_too(small, trained, tmp_path, cut_at):
    generator = {"standardize": True, "decoder_noise": True, "feature_passes": 2, "train": {"epochs": 3}}
    config = small("etag", **OFTEN, **{"method.generator": generator, "method.refit": "ridge", "model.train": trained})
    run(config, tmp_path / "whole")
    assert cut_until_done(config, tmp_path / "cut", cut_at, [9, 4, 7, 5, 8, 6, 4, 9]) > 2
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_two_parameter_groups_are_resumed_too(small, tmp_path, cut_at):
    generator = {"kind": "wgan", "last_task": True, "feature_passes": 2, "train": {"epochs": 4, "batch_size": 16}}
    config = small("gfr", **(OFTEN | {"method.generator": generator}))
    run(config, tmp_path / "whole")
    cut_until_done(config, tmp_path / "cut", cut_at, [7, 9, 8, 12, 9])
    assert_same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(
    ("name", "drift_map"),
    [
        ("pass", "least_squares"),
        *(pytest.param(name, "linear", marks=pytest.mark.slow) for name in ("pass", "efc", "b4")),
    ],
)
def test_means_that_follow_the_backbone_are_moved_once(small, name, drift_map, tmp_path, cut_at):
    group = "method.generator.drift" if name == "b4" else "method.drift"
    drift = {group: {"map": drift_map, "passes": 2, "train": {"steps": 9, "batch_size": 8}}}
    config = small(name, **(OFTEN | {"train.epochs": 2} | SMALL.get(name, {}) | drift))
    run(config, tmp_path / "whole")
    assert cut_until_done(config, tmp_path / "cut", cut_at, [6, 4, 5, 4, 5, 4, 5]) > 3
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_short_passes_are_repeated_not_saved(small, tmp_path, cut_at):
    """Their results are saved with the next checkpoint, which here is at the end of a phase."""
    config = small("efc", **(OFTEN | SMALL["efc"] | {"runtime.checkpoint_seconds": 1e6}))
    run(config, tmp_path / "whole")
    assert cut_until_done(config, tmp_path / "cut", cut_at, [15, 17, 5, 19, 21, 23, 25, 30, 40, 60]) > 2
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_checkpoints_can_be_counted_in_steps(small, tmp_path, cut_at):
    config = small("fine", **(OFTEN | {"runtime.checkpoint_seconds": 1e6, "runtime.checkpoint_steps": 5}))
    run(config, tmp_path / "whole")
    cut_at(12)  # the base task has 12 steps
    with pytest.raises(Cut):
        run(config, tmp_path / "cut")
    content = json.loads(json.loads(newest(tmp_path / "cut" / "unfinished" / "checkpoints").read_text())["content"])
    assert content["saved_steps"] == {"solver": 6}, "the first chance after 5 steps, where every third is one"
    cut_at(0)
    run(config, tmp_path / "cut")
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_the_scale_of_half_precision_is_resumed(small, tmp_path, cut_at, monkeypatch):
    """Fabric has half precision on GPUs only; its own plug-in with a scaler for the CPU stands in for it."""

    def with_scaler(**options):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=3)
        precision = MixedPrecision("16-mixed", device="cpu", scaler=scaler)
        return Fabric(**{key: value for key, value in options.items() if key != "precision"}, plugins=[precision])

    monkeypatch.setattr(runtime, "Fabric", with_scaler)
    config = small("fine", **OFTEN)
    run(config, tmp_path / "whole")
    cut_until_done(config, tmp_path / "cut", cut_at, [5, 7, 6, 9])
    assert_same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.slow
def test_a_run_has_as_many_files_however_many_tasks_it_has(small, tmp_path):
    counts = []
    for tasks in (1, 4):
        out = tmp_path / str(tasks)
        run(small("elucir", **(OFTEN | {"split": f"b2-{tasks}x1"})), out)
        files = [file.relative_to(out) for file in out.rglob("*") if file.is_file()]
        counts.append(sorted(str(file.parent) for file in files if file.parts[0] != "versions"))
        assert [file.name for file in files if file.parts[0] == "versions"] == ["about.json"]
    assert counts[0] == counts[1]


# -- damage -----------------------------------------------------------------------------------------


def newest(folder):
    def serial(path):
        return json.loads(json.loads(path.read_text())["content"])["serial"]

    return max(folder.glob("checkpoint-*.json"), key=serial)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


DAMAGE = {
    "manifest cut short": lambda folder: newest(folder).write_bytes(newest(folder).read_bytes()[:-40]),
    "manifest flipped": lambda folder: flip(newest(folder)),
    "manifest missing": lambda folder: newest(folder).unlink(),
    "tensors flipped": lambda folder: flip(part(folder)),
    "tensors cut short": lambda folder: part(folder).write_bytes(part(folder).read_bytes()[:-9]),
    "tensors missing": lambda folder: part(folder).unlink(),
}


def part(folder):
    """The solver's file of the newest checkpoint."""
    content = json.loads(json.loads(newest(folder).read_text())["content"])
    return folder / f"{content['parts']['solver']}.safetensors"


# a file that is missing is noticed where a shorter one is
SOME = [pytest.param(name, marks=pytest.mark.slow) if name.endswith(("missing", "short")) else name for name in DAMAGE]


@pytest.mark.parametrize("damage", SOME)
def test_a_damaged_checkpoint_is_detected_and_the_one_before_it_used(small, damage, tmp_path, cut_at, capsys):
    config = small("eewc", **OFTEN)
    run(config, tmp_path / "whole")
    cut_at(9)
    with pytest.raises(Cut):
        run(config, tmp_path / "cut")
    assert len(list((tmp_path / "cut" / "unfinished" / "checkpoints").glob("checkpoint-*.json"))) == 2
    DAMAGE[damage](tmp_path / "cut" / "unfinished" / "checkpoints")
    cut_at(0)
    capsys.readouterr()
    run(config, tmp_path / "cut", verbose=True)
    output = " ".join(capsys.readouterr().out.split())
    assert ("is damaged: the one before it is used" in output) == (damage != "manifest missing")
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_what_does_not_change_is_written_once(small, tmp_path, cut_at):
    config = small("il2m", **OFTEN)
    cut_at(30)
    with pytest.raises(Cut):
        run(config, tmp_path)
    manifests = [
        json.loads(json.loads(file.read_text())["content"]) for file in tmp_path.glob("unfinished/checkpoints/*.json")
    ]
    named = {name for manifest in manifests for name in [*manifest["parts"].values(), *manifest["results"]] if name}
    assert {file.stem for file in tmp_path.glob("unfinished/checkpoints/*.safetensors")} == named
    assert len({manifest["parts"]["exemplars"] for manifest in manifests}) == 1


# -- signals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_a_signal_saves_first_and_prints_how_to_resume(tmp_path, number, code):
    words = ["run", "--method", "fine", "--set", "train.epochs=400", "--set", "model.width=4", "--out", "run"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "etag.cli", *words]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    steps = tmp_path / "run" / "steps.jsonl"
    while not (steps.is_file() and steps.stat().st_size):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == code
    assert "the same command" in errors
    assert "'run' from the last checkpoint" in errors
    assert list((tmp_path / "run" / "unfinished" / "checkpoints").glob("checkpoint-*.json"))
