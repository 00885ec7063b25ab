"""A run that is cut inside a task goes on to the same result, bit for bit, whatever the method and the moment."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from etag.experiments.checkpointer import Interrupted
from etag.experiments.store import RunDirectory, tensors
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision

from etag.engine import engine, runtime, training
from etag.experiments.run import run

OFTEN = {
    "split": "b2-1x2",
    "runtime.checkpoint_every": 0,
    "train.epochs": 4,
    "train.batch_size": 8,
    "data.train_per_class": 14,
}
GENERATOR = {"method.generator.train.epochs": 3, "method.generator.feature_passes": 2}
SMALL = {
    "gc": {"method.feature_passes": 2, "method.generator.train.steps": 6},
    "bir": {"method.feature_passes": 2, "method.generator": {"hidden": 32, "train": {"steps": 6, "batch_size": 8}}},
    "abd": {"method.generator": {"latent": 8, "train": {"steps": 8, "batch_size": 8}}},
}
HAS_GENERATOR = ("gfr", "egfr", "etag", "b0", "b1", "b2", "b3", "dgr", "edgr", "tag")


class Cut(Exception):
    """The process dies here."""


@pytest.fixture
def cut_at(monkeypatch):
    """Let the process die before the n-th step or batch of a sweep, counted over the whole sitting."""
    monkeypatch.setattr(training, "LOG_EVERY", 3)
    step, visits = training.Training._step, engine.Engine._visits
    left = [0]

    def count():
        left[0] -= 1
        if left[0] == 0:
            raise Cut

    def counted_step(*arguments):
        count()
        return step(*arguments)

    def counted_visits(*arguments):
        for found in visits(*arguments):
            count()
            yield found

    monkeypatch.setattr(training.Training, "_step", counted_step)
    monkeypatch.setattr(engine.Engine, "_visits", counted_visits)

    def set_limit(steps):
        left[0] = steps

    return set_limit


def outcome(path):
    """All that must be the same: every number that is no time, every weight, every logged term."""
    directory = RunDirectory(path)
    metrics = json.loads(directory.metrics.read_text())
    numbers = {key: metrics[key] for key in ("accuracy_matrix", "task_aware_matrix", "confusion", "stored_bytes")}
    lines = [json.loads(line) for line in directory.steps.read_text().splitlines()]
    told = [(line["task"], line["phase"], line["step"], line["lr"], line["terms"]) for line in lines]
    return numbers, told, tensors(directory.load_model())


def assert_same(left, right):
    (numbers, told, weights), (other_numbers, other_told, other_weights) = outcome(left), outcome(right)
    assert numbers == other_numbers
    assert told == other_told
    assert weights.keys() == other_weights.keys()
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


def cut_until_done(config, path, cut_at, steps):
    """Sittings of so many steps each, the last of which comes to the end; how many there were."""
    for sitting, limit in enumerate([*steps, 0], start=1):
        cut_at(limit)
        try:
            run(config, path)
        except Cut:
            continue
        return sitting
    raise AssertionError("it never ended")


def test_cut_at_five_steps_it_ends_as_one_that_never_was(small, every_method, tmp_path, cut_at):
    name = every_method
    own = GENERATOR if name in HAS_GENERATOR else SMALL.get(name) or SMALL.get(name.removeprefix("e"), {})
    config = small(name, **OFTEN, **own)
    run(config, tmp_path / "whole")
    chance = random.Random(name)
    sittings = cut_until_done(config, tmp_path / "cut", cut_at, [chance.randint(4, 9) for _ in range(5)])
    assert sittings > 2
    assert_same(tmp_path / "whole", tmp_path / "cut")
    assert not (tmp_path / "cut" / "checkpoints").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"train.schedule": "plateau", "train.validation": 0.2, "train.patience": 1},
        {"train.schedule": "plateau", "train.patience": 1, "train.optimizer": "sgd", "train.lr": 0.05},
        {"train.schedule": "cosine", "train.steps": 11},
    ],
    ids=["plateau", "plateau on the training loss", "steps"],
)
def test_so_do_other_schedules(small, options, tmp_path, cut_at):
    config = small("fine", **(OFTEN | {"train.epochs": 8} | options))
    run(config, tmp_path / "whole")
    cut_until_done(config, tmp_path / "cut", cut_at, [5, 6, 7, 8, 9, 10])
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_so_does_a_game_of_two_players(small, tmp_path, cut_at):
    generator = {"kind": "wgan", "last_task": True, "feature_passes": 2, "train": {"epochs": 4, "batch_size": 16}}
    config = small("gfr", **(OFTEN | {"method.generator": generator}))
    run(config, tmp_path / "whole")
    cut_until_done(config, tmp_path / "cut", cut_at, [7, 9, 8, 12, 9])
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_checkpoints_can_be_counted_in_steps(small, tmp_path, cut_at):
    config = small("fine", **(OFTEN | {"runtime.checkpoint_every": 1e6, "runtime.checkpoint_steps": 5}))
    run(config, tmp_path / "whole")
    cut_at(12)  # the base task has 12 steps
    with pytest.raises(Cut):
        run(config, tmp_path / "cut")
    content = json.loads(json.loads(newest(tmp_path / "cut" / "checkpoints").read_text())["content"])
    assert content["logged"] == {"solver": 6}, "the first chance after 5 steps, where every third is one"
    cut_at(0)
    run(config, tmp_path / "cut")
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_the_scale_of_half_precision_is_gone_on_with(small, tmp_path, cut_at, monkeypatch):
    """Fabric has half precision on GPUs only; its own plug-in with a scaler for the CPU is the real thing here."""

    def with_scaler(**options):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=3)
        precision = MixedPrecision("16-mixed", device="cpu", scaler=scaler)
        return Fabric(**{key: value for key, value in options.items() if key != "precision"}, plugins=[precision])

    monkeypatch.setattr(runtime, "Fabric", with_scaler)
    config = small("fine", **OFTEN)
    run(config, tmp_path / "whole")
    cut_until_done(config, tmp_path / "cut", cut_at, [5, 7, 6, 9])
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_a_run_keeps_as_many_files_however_many_tasks_it_has(small, tmp_path):
    names = []
    for tasks in (1, 4):
        run(small("elucir", **(OFTEN | {"split": f"b2-{tasks}x1"})), tmp_path / str(tasks))
        names.append({file.relative_to(tmp_path / str(tasks)) for file in (tmp_path / str(tasks)).rglob("*")})
    assert names[0] == names[1]


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


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_found_out_and_the_one_before_it_used(small, damage, tmp_path, cut_at, capsys):
    config = small("eewc", **OFTEN)
    run(config, tmp_path / "whole")
    cut_at(9)
    with pytest.raises(Cut):
        run(config, tmp_path / "cut")
    assert len(list((tmp_path / "cut" / "checkpoints").glob("checkpoint-*.json"))) == 2
    DAMAGE[damage](tmp_path / "cut" / "checkpoints")
    cut_at(0)
    capsys.readouterr()
    run(config, tmp_path / "cut", verbose=True)
    said = " ".join(capsys.readouterr().out.split())
    assert ("is damaged: the one before it is used" in said) == (damage != "manifest missing")
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_what_does_not_change_is_written_once(small, tmp_path, cut_at):
    config = small("il2m", **OFTEN)
    cut_at(30)
    with pytest.raises(Cut):
        run(config, tmp_path)
    manifests = [json.loads(json.loads(file.read_text())["content"]) for file in tmp_path.glob("checkpoints/*.json")]
    named = {name for manifest in manifests for name in [*manifest["parts"].values(), *manifest["results"]] if name}
    assert {file.stem for file in tmp_path.glob("checkpoints/*.safetensors")} == named
    assert len({manifest["parts"]["exemplars"] for manifest in manifests}) == 1


# -- signals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_asked_to_stop_it_saves_first_and_says_how_to_go_on(tmp_path, number, code):
    words = ["run", "--method", "fine", "--set", "train.epochs=400", "--set", "model.width=4", "--out", "run"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "etag.cli", *words]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    steps = tmp_path / "run" / "steps.jsonl"
    while not (steps.is_file() and steps.stat().st_size):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == code
    assert "the same command goes on in 'run' from the last checkpoint" in said
    assert list((tmp_path / "run" / "checkpoints").glob("checkpoint-*.json"))


def test_in_python_it_is_a_keyboard_interrupt():
    assert issubclass(Interrupted, KeyboardInterrupt)
    assert Interrupted(15).exit_code == 143
