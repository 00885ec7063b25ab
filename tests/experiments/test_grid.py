"""Grids: what a file stands for, what is skipped, what goes on, what fails."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from etag.cli import app
from etag.core.errors import EtagError
from etag.experiments import recipes
from etag.experiments.bench import Bench
from etag.experiments.estimating import estimates
from etag.experiments.grid import Grid
from etag.experiments.local_workers import LocalWorkers

TINY = {
    "data.train_per_class": 16,
    "data.test_per_class": 8,
    "model.width": 4,
    "train.epochs": 1,
    "train.base": {},
    "train.batch_size": 16,
}


def grid_file(tmp_path, **content):
    file = tmp_path / "tiny.yaml"
    usual = {"recipe": "digits", "settings": TINY, "methods": ["fine"], "splits": ["b2-1x2"], "seeds": [0]}
    file.write_text(yaml.safe_dump(usual | content))
    return str(file)


def names(runs):
    return [run.name for run in runs]


class Silent:
    """A board that nobody looks at."""

    def show(self, rows, seconds_left):
        self.left = seconds_left


def bench(tmp_path, file, jobs=1, **options):
    made = Bench(Grid.load(file), tmp_path / "store", tmp_path / "results", **options)
    return made.run(LocalWorkers(jobs), Silent())


def etag(*words, cwd):
    command = [sys.executable, "-m", "etag.cli", *map(str, words)]
    return subprocess.run(
        command, cwd=cwd, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300
    )


def test_a_grid_is_every_combination(tmp_path):
    blocks = [
        {"methods": ["fine", "gfr"], "seeds": [0, 3]},
        {"methods": ["etag"], "variants": {"": {}, "tau1": {"method.embedding.tau": 1.0}}},
        {"methods": ["lwf"], "splits": ["b2-1x2", "b0-2x2"]},
    ]
    runs = Grid.load(grid_file(tmp_path, runs=blocks)).plan(lambda _: None)
    assert names(runs) == [
        *(f"b2-1x2/{method}-seed{seed}" for seed in (0, 3) for method in ("fine", "gfr")),
        "b2-1x2/etag-seed0",
        "b2-1x2/etag-tau1-seed0",
        "b2-1x2/lwf-seed0",
        "b0-2x2/lwf-seed0",
    ]
    assert [run.config.method.embedding.tau for run in runs[4:6]] == [3.0, 1.0]
    assert {run.config.model.width for run in runs} == {4}


def test_the_printed_command_is_the_same_run(tmp_path):
    variants = {"x": {"method.embedding.tau": 1.5, "train.schedule": "cosine", "data.flip": False}}
    (run,) = Grid.load(grid_file(tmp_path, methods=["etag"], preset="fast", variants=variants)).plan(lambda _: None)
    words = run.command.split()
    assert words[:3] == ["etag", "run", "digits"]
    said = CliRunner().invoke(app, [*shlex.split(run.command)[1:], "--dry-run"])
    assert said.exit_code == 0, said.output
    shown = yaml.safe_load(said.stdout.partition("parameters at the end")[0])
    assert shown == json.loads(json.dumps(run.config.plain()))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"methods": []}, "methods"),
        ({"sedes": [1]}, "sedes"),
        ({"seeds": [-1]}, "seeds"),
        ({"settings": TINY | {"split": "b2-1x2"}}, "split has a place of its own, splits"),
        ({"runs": 3}, "'runs' should list blocks"),
        ({"methods": ["fien"]}, "did you mean 'fine'"),
        ({"settings": TINY | {"train.epohcs": 2}}, "did you mean 'epochs'"),
        ({"runs": [{}, {}]}, "several runs that would be named b2-1x2/fine-seed0"),
    ],
)
def test_grids_that_do_not_do(tmp_path, content, says):
    with pytest.raises(EtagError) as refused:
        Grid.load(grid_file(tmp_path, **content)).plan(lambda _: None)
    assert says in str(refused.value)


def test_grids_that_are_not_there():
    with pytest.raises(EtagError, match="did you mean 'smoke'"):
        Grid.load("smoek")
    with pytest.raises(EtagError, match="does not exist"):
        Grid.load("nowhere.yaml")


def test_what_is_done_is_skipped_and_results_alone_are_enough(tmp_path):
    file = grid_file(tmp_path, methods=["fine", "lwf"])
    assert {row.state for row in bench(tmp_path, file, jobs=2)} == {"done"}
    made = tmp_path / "results" / "b2-1x2" / "fine-seed0"
    assert sorted(path.name for path in made.iterdir()) == ["command.txt", "config.yaml", "metrics.json"]
    marks = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.json")}
    (tmp_path / "store").rename(tmp_path / "gone")
    rows = bench(tmp_path, file)
    assert [row.state for row in rows] == ["done", "done"]
    assert rows[0].accuracy == json.loads((made / "metrics.json").read_text())["A_weighted"]
    assert not list((tmp_path / "store").rglob("metrics.json")), "nothing was made again"
    again = {path for path in tmp_path.rglob("metrics.json") if "gone" not in str(path)}
    assert {marks[path] for path in again} == {path.stat().st_mtime_ns for path in again}


def test_one_that_fails_does_not_stop_the_others(tmp_path):
    file = grid_file(tmp_path, methods=["fine"], variants={"bad": {"train.lr": 1e9}, "good": {}})
    bad, good = bench(tmp_path, file)
    assert (bad.state, good.state) == ("failed", "done")
    assert "NaN" in bad.reason or "finite" in bad.reason or "diverged" in bad.reason, bad.reason
    assert not (tmp_path / "results" / "b2-1x2" / "fine-bad-seed0").exists()


def test_results_of_another_configuration_are_kept_unless_asked(tmp_path):
    bench(tmp_path, grid_file(tmp_path))
    other = grid_file(tmp_path, settings=TINY | {"train.lr": 5e-3})
    (kept,) = bench(tmp_path, other)
    assert kept.state == "failed"
    assert "another configuration (train.lr is" in kept.reason
    (made,) = bench(tmp_path, other, restart=True)
    assert made.state == "done"
    config = yaml.safe_load((tmp_path / "results" / made.run.name / "config.yaml").read_text())
    assert config["train"]["lr"] == 5e-3


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_goes_on(tmp_path, sent):
    file = grid_file(tmp_path, methods=["gfr"], settings=TINY | {"train.epochs": 60})
    words = ["bench", file, "--store", "store", "--results", "results"]
    process = subprocess.Popen(
        [sys.executable, "-m", "etag.cli", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    run = tmp_path / "store" / "b2-1x2" / "gfr-seed0"
    while not (run / "steps.jsonl").is_file() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(sent)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 130
    assert told == "interrupted: the same command goes on from here.\n"
    assert not (run / "metrics.json").exists()
    done = etag(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 runs are done: results" in done.stdout
    assert "going on" in (run.parent / "gfr-seed0.log").read_text()


def test_a_search_chooses_on_the_base_task_alone(tmp_path):
    search = {"over": {"train.lr": [1e-9, 3e-3]}, "split": "b1-1x1", "classes": 2}
    file = grid_file(tmp_path, search=search, settings=TINY | {"train.epochs": 3})
    rows = {row.run.name: row for row in bench(tmp_path, file)}
    tried = {name: row for name, row in rows.items() if row.run.candidate}
    assert list(tried) == ["search/b1-1x1/fine-lr=1e-09-seed0", "search/b1-1x1/fine-lr=0.003-seed0"]
    assert all(row.state == "done" for row in rows.values())
    best = max(tried.values(), key=lambda row: row.accuracy)
    chosen = rows["b2-1x2/fine-seed0"].run.config
    assert chosen.train.lr == best.run.config.train.lr
    for row in tried.values():
        made = json.loads((tmp_path / "results" / row.run.name / "metrics.json").read_text())
        whole = json.loads((tmp_path / "results" / "b2-1x2" / "fine-seed0" / "metrics.json").read_text())
        assert made["class_names"] == whole["class_names"][:2], "the base task's classes"
        assert sum(map(sum, made["confusion"])) == 2 * 3, "a fifth of 16 training images a class"


def test_estimates_are_for_all_seeds_and_share_what_was_measured(tmp_path):
    grid = Grid.load(grid_file(tmp_path, splits=["b2-1x2", "b0-2x2"], seeds=[0, 1, 2]))
    (first, second) = list(estimates(grid))
    assert first[:2] == ("b2-1x2/fine", 3)
    assert second[:2] == ("b0-2x2/fine", 3)
    assert first[3] == second[3] > 0, "as many images pass, at the same cost"
    assert first[2] == pytest.approx(second[2])


def test_two_at_once(tmp_path):
    made = Bench(Grid.load(grid_file(tmp_path)), tmp_path / "store", tmp_path / "results")
    with made._alone(), pytest.raises(EtagError, match="another `etag bench` works"):
        bench(tmp_path, grid_file(tmp_path))


@pytest.mark.parametrize("name", recipes.grids())
def test_every_grid_of_ours_can_be_planned(name):
    runs = Grid.load(name).everything()
    assert len(runs) == len(set(names(runs))) > 5


def test_a_dry_run_changes_nothing(tmp_path):
    bench(tmp_path, grid_file(tmp_path))
    other = grid_file(tmp_path, settings=TINY | {"train.lr": 5e-3})
    shutil.rmtree(tmp_path / "results")
    before = sorted(tmp_path.rglob("*"))
    said = etag("bench", other, "--store", "store", "--results", "results", "--dry-run", "--restart", cwd=tmp_path)
    assert said.stdout.startswith("failed   b2-1x2/fine-seed0"), said.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_plug_ins_reach_the_runs(tmp_path):
    near = Path(__file__).parents[2] / "examples" / "near.py"
    words = ["bench", grid_file(tmp_path, methods=["near"]), "--store", "store", "--results", "results"]
    done = etag(*words, "--plugin", near, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "unknown method 'near'" in etag(*words, cwd=tmp_path).stderr
