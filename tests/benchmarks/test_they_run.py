"""The benchmark scripts still fit the code they measure; what they print is for quiet machines only."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = ["--width", "4", "--batch", "8"]


def output(script, *words, tiny=TINY, rounds=True):
    words = [*map(str, words), *tiny, *(["--rounds", "1"] if rounds else [])]
    command = [sys.executable, str(ROOT / "benchmarks" / script), *words]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_engine_overhead():
    assert "engine / bare loop:" in output("engine_overhead.py", "--size", 8, "--images", 16)


@pytest.mark.parametrize("task", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_exact_mode_asserts_that_losses_agree(task):
    printed = output("exact_mode.py", "--size", 8, "--images", 16, "--task", task)
    assert "they differ by" in printed
    assert "plain / exact:" in printed


@pytest.mark.slow
def test_peers_have_the_same_losses():
    printed = output("peers.py", "--images", 64, "--batch", 16, tiny=[])
    assert printed.count("usual / etag") == 4


@pytest.mark.slow
def test_checkpoints():
    assert "of the time" in output("checkpoints.py", "--size", 8)


@pytest.mark.slow
def test_flat_cost(tmp_path):
    printed = output("flat_cost.py", "--size", 8, "--steps", 1, "--out", tmp_path / "figure.png")
    assert "| 200 | 1000 |" in printed
    assert "bytes a class adds: backbone 0" in printed
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_likelihood():
    printed = output("likelihood.py", "--images", 2, "--classes", 3, tiny=[])
    assert "| mean |" in printed
    assert "| 10 |" in printed


@pytest.mark.slow
def test_features():
    printed = output("features.py", "--images", 8, "--size", 32, tiny=[])
    assert "| as etag |" in printed


@pytest.mark.slow
def test_predicting():
    printed = output("predicting.py", "--images", 20, "--size", 8, "--width", 4, "--files", 5, tiny=[])
    assert "predict / backbone throughput:" in printed
    assert "5 files: decoding alone" in printed


@pytest.mark.slow
def test_profile():
    assert "| evaluation |" in output("profile_etag.py", "--size", 8, rounds=False)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fine", "etag"])
def test_decoding(shared_data, method):
    folder = shared_data / "imagenet-mini"
    assert "files / memory:" in output("decoding.py", folder, "--size", 16, "--method", method)


@pytest.mark.slow
def test_practitioner(shared_data, tmp_path, monkeypatch):
    monkeypatch.setenv("ETAG_DATA", str(shared_data))
    short = ["--set", "train.steps=2", "--set", "train.base={steps: 2}", "--set", "data.size=32"]
    words = ["--methods", "fine", "--seeds", 0, "--out", tmp_path, *short]
    printed = output("practitioner.py", *words, tiny=[], rounds=False)
    assert "fine   all" in printed
    again = output("practitioner.py", *words, tiny=[], rounds=False)
    assert "new classes" not in again, "no model is trained twice"


@pytest.mark.slow
def test_scale():
    words = ["--classes", 8, "--images", 4, "--lesson", 4, "--size", 32]
    printed = output("scale.py", "--methods", "ridge", "fecam", *words, tiny=[], rounds=False)
    assert printed.count("| measured |") == 6
    assert "| ridge | 80 | 1,000,000 | computed |" in printed
