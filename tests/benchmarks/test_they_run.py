"""The benchmark scripts still fit the code they measure; what they print is for quiet machines only."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = ["--width", "4", "--batch", "8", "--rounds", "1"]


def output(script, *words):
    command = [sys.executable, str(ROOT / "benchmarks" / script), *map(str, words), *TINY]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_engine_overhead():
    assert "engine / bare loop:" in output("engine_overhead.py", "--size", 8, "--images", 16)


@pytest.mark.parametrize("method", ["fine", "etag"])
def test_decoding(shared_data, method):
    folder = shared_data / "imagenet-mini"
    assert "files / memory:" in output("decoding.py", folder, "--size", 16, "--method", method)
