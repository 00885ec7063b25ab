"""The example plug-in, through the real command: one file, reported and saved like any other method."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "examples" / "near.py"
QUICK = ["--split", "b2-1x2", "--set", "train.epochs=1", "--set", "model.width=4", "--set", "data.train_per_class=16"]


def etag(*words, cwd):
    command = [sys.executable, "-m", "etag.cli", *map(str, words)]
    env = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_the_example_is_run_reported_and_saved_like_any_other(tmp_path):
    done = etag("run", "--plugin", FILE, "--method", "near", *QUICK, "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["method"] == "near"
    lines = (tmp_path / "run" / "steps.jsonl").read_text().splitlines()
    assert '"near"' in lines[-1]
    assert '"near"' not in lines[0], "the base task has no teacher"
    assert (tmp_path / "run" / "report.html").is_file()
    # in a process of its own, which does not know the plug-in before it is loaded
    load = "from etag.learner.model_directory import ModelDirectory; from etag.experiments import plugins; "
    printed = []
    for files in ([], [str(FILE)]):
        script = load + f"plugins.load({files!r}); print(type(ModelDirectory('run').load_method()[0]).__name__)"
        printed.append(subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True))
    assert "unknown method 'near'" in printed[0].stderr
    assert printed[1].stdout.strip() == "Near", printed[1].stderr


@pytest.mark.slow
def test_the_example_is_listed_and_unknown_without_the_plug_in(tmp_path):
    listed = json.loads(etag("methods", "--json", "--plugin", FILE, cwd=tmp_path).stdout)
    assert "near" in {entry["name"] for entry in listed}
    refused = etag("run", "--method", "near", cwd=tmp_path)
    assert refused.returncode == 2
    assert "unknown method 'near'" in refused.stderr


def test_the_example_is_short():
    assert len(FILE.read_text().splitlines()) <= 35
