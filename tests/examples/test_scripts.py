"""The examples as a reader runs them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.examples.test_methods import METHODS
from tests.examples.test_near import QUICK, etag

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(script, cwd):
    done = subprocess.run(
        [sys.executable, EXAMPLES / script], cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shares(text):
    return [float(number) for number in re.findall(r"([\d.]+)% right", text)]


@pytest.mark.slow
def test_folders(tmp_path):
    printed = run("folders.py", tmp_path)
    assert "0, 1, 2, 3, 4:" in printed
    assert shares(printed)[-1] > 50, "five digits, chance is 20"


@pytest.mark.slow
def test_arrays(tmp_path):
    printed = run("arrays.py", tmp_path)
    assert shares(printed)[-1] > 40, "eight digits, chance is 12.5"
    assert not list(tmp_path.iterdir()), "it leaves nothing behind"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fine", pytest.param("etag", marks=pytest.mark.slow)])
def test_a_backbone_of_your_own(tmp_path, method):
    words = ["--plugin", EXAMPLES / "patches.py", "--set", "model.backbone=patches", "--method", method]
    done = etag("run", *words, *QUICK, "--set", "model.width=8", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_every_example_is_tried():
    tried = {"near.py", "folders.py", "arrays.py", "patches.py", *(file for file, _ in METHODS)}
    assert {path.name for path in EXAMPLES.glob("*.py")} == tried
