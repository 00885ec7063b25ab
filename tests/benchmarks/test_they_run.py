"""The benchmark scripts still fit the code they measure; what they print is for quiet machines only."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runs import small_config

from etag.experiments.run import run

ROOT = Path(__file__).parents[2]
TINY = ["--width", "4", "--batch", "8"]


def output(script, *words, tiny=TINY, rounds=True):
    words = [*map(str, words), *tiny, *(["--rounds", "1"] if rounds else [])]
    command = [sys.executable, str(ROOT / "benchmarks" / script), *words]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def table(*args, **options):
    """The rows of the first table that a script prints, by column; nothing but tables and sentences is printed."""
    lines = output(*args, **options).splitlines()
    assert all(line == "" or line.startswith("|") or line.endswith((".", ":")) for line in lines)
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [dict(zip(head, row, strict=True)) for row in rows if len(row) == len(head)]


def test_all_prints_tables_of_tiny_settings():
    """Those of two benchmarks, which need no tests of their own."""
    printed = output("all.py", "engine_overhead", "likelihood", "--quick", tiny=[], rounds=False)
    assert printed.startswith("<!-- engine_overhead -->\n\n| setting | engine, images/s: best (median) |")
    assert "| mean, 3 classes, 1 thread, 1 round |" in printed
    assert "| 10 samples, 3 classes, 1 thread, 1 round |" in printed
    assert "`python benchmarks/all.py likelihood --quick`: " in printed
    assert printed.count("<!-- end -->") == 2


@pytest.mark.parametrize("task", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_exact_mode_asserts_that_losses_agree(task):
    (row,) = table("exact_mode.py", "--size", 8, "--images", 16, "--task", task)
    assert float(row["losses differ by"]) < 1e-4
    assert "time, plain / exact: minima (medians)" in row


@pytest.mark.slow
def test_before_compares_a_commit_with_this_one():
    """Every contender has a row; the copy of the commit is removed."""
    worktrees = ["git", "worktree", "list"]
    at_first = subprocess.run(worktrees, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rows = table("before.py", "HEAD", "predicting", "--images", 20, "--size", 8, tiny=["--width", "4"])
    contenders = {row.pop("predicting, 1 round") for row in rows}
    assert contenders == {"backbone", "predict", "decoding files", "predict from files"}
    assert all(float(row["now, images/s: best (median)"].split()[0]) > 0 for row in rows)
    assert subprocess.run(worktrees, cwd=ROOT, capture_output=True, text=True, check=True).stdout == at_first


@pytest.mark.parametrize("words", [[], pytest.param(["--method", "lwf"], marks=pytest.mark.slow)])
def test_precision(words):
    rows = table("precision.py", "--size", 8, "--images", 16, *words)
    assert [row["setting"].split(", ")[1] for row in rows] == ["base task", "later task"]
    assert all("time, float32 / bf16-mixed: minima (medians)" in row for row in rows)


@pytest.mark.slow
def test_whole_runs_are_paired_by_seed_and_not_repeated(tmp_path):
    words = ["--recipe", "digits", "--methods", "fine", "--set", "train.epochs=1", "--seeds", 2, "--store", tmp_path]
    (row,) = rows = table("whole_runs.py", *words, tiny=[], rounds=False)
    assert row["run"] == "fine, bf16: digits train.epochs=1, 2 seeds"
    assert len(list(tmp_path.glob("fine-*-seed?/metrics.json"))) == 4
    assert table("whole_runs.py", *words, tiny=[], rounds=False) == rows


def test_a_difference_has_students_interval(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from whole_runs import compared

    rows = compared("x", [(51.0, 50.0), (53.0, 50.0)], [(50.0, 100.0), (50.0, 75.0)])
    assert rows["difference (95 % interval)"] == "+2.00 (-10.71 to +14.71)"  # quantile 12.706, standard error 1
    assert rows["differences by seed"] == "+1.00, +3.00"
    assert rows["time, float32 / this one: mean (by seed)"] == "1.75 (2.00, 1.50)"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fine", "ewc", "lwf", "lucir"])
def test_peers_have_the_same_losses(method):
    rows = table("peers.py", "--methods", method, "--images", 64, "--batch", 16, tiny=[])
    assert [row["setting"].split(", ")[:2] for row in rows] == [[method, "base task"], [method, "later task"]]
    assert all(float(row["losses differ by"]) < 1e-4 for row in rows)
    assert all("time, usual / etag: minima (medians)" in row for row in rows)


def test_where_accuracy_goes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from diagnosis import row

    metrics = {name: run(small_config(name), tmp_path / name) for name in ("etag", "ridge")}
    etag, ridge = row(tmp_path / "etag"), row(tmp_path / "ridge")
    assert float(etag["all"]) == pytest.approx(100 * metrics["etag"]["step_accuracy_weighted"][-1], abs=0.01)
    matrix = metrics["etag"]["accuracy_matrix"]
    assert float(etag["later tasks, when learned"]) == pytest.approx(50 * (matrix[1][1] + matrix[2][2]), abs=0.01)
    assert float(etag["probe, real features"]) > 50  # chance is 25
    assert 0 < float(etag["probe, generated features"]) < float(etag["probe, real features"])
    assert ridge["probe, real features"] == ridge["all"], "ridge loses nothing by increments"
    assert ridge["probe, generated features"] == ""


@pytest.mark.slow
def test_checkpoints():
    (row,) = table("checkpoints.py", "--size", 8)
    assert row["share of 300 s"].count("%") == 2
    assert row["written"].endswith("files")


@pytest.mark.slow
def test_flat_cost(tmp_path):
    printed = output("flat_cost.py", "--size", 8, "--steps", 1, "--out", tmp_path / "figure.png")
    assert "| 200 | 1000 |" in printed
    assert "Bytes that each class adds: backbone 0" in printed
    assert (tmp_path / "figure.png").stat().st_size > 10_000


@pytest.mark.slow
def test_features():
    (row,) = table("features.py", "--images", 8, "--size", 32, tiny=[])
    assert "as etag, images/s: best (median)" in row


@pytest.mark.slow
def test_alternatives_predict_alike(shared_data):
    (row,) = table("alternatives.py", shared_data / "flowers12", "--size", 64, "--images", 48, tiny=[])
    accuracies = [float(row[f"{name}, accuracy"].removesuffix(" %")) for name in ("etag", "ONNX Runtime")]
    assert min(accuracies) > 50
    assert abs(accuracies[0] - accuracies[1]) < 5


@pytest.mark.slow
def test_learning(shared_data, monkeypatch):
    monkeypatch.setenv("ETAG_DATA", str(shared_data))
    (row,) = table("learning.py", "--images", 40, "--size", 32, tiny=[])
    assert row["setting"].startswith("40 images, 20 classes, 32 px, 32-true")
    assert "1 thread, s: minimum (median)" in row


@pytest.mark.slow
def test_predicting():
    (row,) = table("predicting.py", "--images", 20, "--size", 8, "--width", 4, tiny=[])
    assert "time, backbone / predict: minima (medians)" in row
    assert "decoding files, images/s: best (median)" in row


@pytest.mark.slow
def test_profile():
    assert table("profile_etag.py", "--size", 8)[-1]["piece"] == "evaluation"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fine", "etag"])
def test_decoding(shared_data, method):
    (row,) = table("decoding.py", shared_data / "imagenet-mini", "--size", 16, "--method", method)
    assert "time, files / memory: minima (medians)" in row


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


def test_near_copies_are_counted(tmp_path, shared_data):
    for number, kind in enumerate(("daisy", "pansy")):
        photo = sorted((shared_data / "flowers12" / "train" / kind).iterdir())[0]
        (tmp_path / f"{number}.jpg").write_bytes(photo.read_bytes())
    rows = table("near_copies.py", tmp_path, "--every", 1, tiny=[], rounds=False)
    assert rows[0] == {"change": "JPEG, quality 50", "found": "100.0% (2 of 2)", "other groups": "0"}
    assert rows[-1] == {"change": "mirrored", "found": "0.0% (0 of 2)", "other groups": "0"}
