"""Grids: the runs that a file describes; which are skipped, resumed or failed; what is written for the report."""

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from etag.cli import app
from etag.core.errors import EtagError
from etag.core.files import locked
from etag.experiments import recipes
from etag.experiments.bench import Bench, RunStatus
from etag.experiments.config import resolve
from etag.experiments.grid import Grid
from etag.experiments.local_workers import LocalWorkers, visible_devices
from etag.learner.model_directory import ModelDirectory

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


def no_display(runs, seconds_left):
    """Prints nothing."""


def bench(tmp_path, file, jobs=1, **options):
    whole = Bench(Grid.load(file), tmp_path / "store", tmp_path / "results", **options)
    return whole.execute(LocalWorkers(jobs), no_display)


def etag(*words, cwd):
    command = [sys.executable, "-m", "etag.cli", *map(str, words)]
    return subprocess.run(
        command, cwd=cwd, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300
    )


def test_a_grid_is_every_combination_and_all_blocks_have_a_seed_before_any_has_the_next(tmp_path):
    blocks = [
        {"methods": ["fine", "gfr"], "seeds": [0, 3]},
        {"methods": ["etag"], "variants": {"": {}, "tau1": {"method.embedding.tau": 1.0}}},
        {"methods": ["lwf"], "splits": ["b2-1x2", "b0-2x2"]},
    ]
    runs = Grid.load(grid_file(tmp_path, runs=blocks)).plan(lambda _: None)
    assert names(runs) == [
        "b2-1x2/fine-seed0",
        "b2-1x2/gfr-seed0",
        "b2-1x2/etag-seed0",
        "b2-1x2/etag-tau1-seed0",
        "b2-1x2/lwf-seed0",
        "b0-2x2/lwf-seed0",
        "b2-1x2/fine-seed3",
        "b2-1x2/gfr-seed3",
    ]
    assert [run.config.method.embedding.tau for run in runs[2:4]] == [3.0, 1.0]
    assert {run.config.model.width for run in runs} == {4}


@pytest.mark.parametrize(
    "settings",
    [
        {"method.embedding.tau": 1.5, "train.schedule": "cosine", "data.flip": False},
        {"method": {"embedding": {"tau": 1.5, "views": "jigsaw"}}, "train": {"milestones": [1, 2]}},
    ],
    ids=["dotted keys", "mappings and lists"],
)
def test_the_command_of_a_run_can_be_pasted(tmp_path, settings):
    variants = {"x": settings}
    (run,) = Grid.load(grid_file(tmp_path, methods=["etag"], preset="fast", variants=variants)).plan(lambda _: None)
    assert run.command.split()[:3] == ["etag", "run", "digits"]
    assert "\n" not in run.command
    done = CliRunner().invoke(app, [*shlex.split(run.command)[1:], "--dry-run"])
    assert done.exit_code == 0, done.output
    printed = yaml.safe_load(done.stdout.partition("parameters at the end")[0])
    assert printed == json.loads(json.dumps(run.config.to_json()))


@pytest.mark.slow
def test_the_runs_of_a_grid_share_the_features_of_a_frozen_backbone(tmp_path):
    file = grid_file(tmp_path, methods=["ncm", "slda"], settings=TINY | {"model.train": "head"})
    whole, features = Bench(Grid.load(file), tmp_path / "store", tmp_path / "results"), tmp_path / "store" / "features"
    runs = whole.execute(LocalWorkers(1, tmp_path / "store"), no_display)
    assert [run.state for run in runs] == ["done", "done"]
    assert len(list(features.glob("*.rows"))) == 1, "both methods have the same backbone"
    assert not list((tmp_path / "store").glob("*/*/frozen-features"))


def test_the_runs_of_a_block_start_with_one_backbone_that_was_adapted_on_the_base_task(tmp_path):
    block = {"methods": ["ncm", "slda"], "adaptation": {"classes": 2, "settings": {"model.train": "all"}}}
    file = grid_file(tmp_path, runs=[block], settings=TINY | {"model.train": "head"})
    runs = {status.run.name: status for status in bench(tmp_path, file)}
    assert list(runs) == ["adapted/b0-1x2/fine-seed0", "b2-1x2/ncm-seed0", "b2-1x2/slda-seed0"]
    assert [status.state for status in runs.values()] == ["done"] * 3, [status.reason for status in runs.values()]
    assert not list((tmp_path / "store").rglob("report.html")), "a grid has one page for all"
    source = ModelDirectory(tmp_path / "store" / "adapted/b0-1x2/fine-seed0").current().backbone_file
    for method in ("ncm", "slda"):
        config = yaml.safe_load((tmp_path / "results" / "b2-1x2" / f"{method}-seed0" / "config.yaml").read_text())
        assert config["model"]["weights"] == "run:adapted/b0-1x2/fine-seed0"
        assert config["model"]["sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
        run = ModelDirectory(tmp_path / "store" / f"b2-1x2/{method}-seed0").current()
        assert run.backbone_file.read_bytes() == source.read_bytes(), "frozen from the start"
    metrics = [json.loads((tmp_path / "results" / name / "metrics.json").read_text()) for name in runs]
    assert metrics[0]["class_names"] == metrics[1]["class_names"][:2], "the base task's classes"
    assert "ETAG_STORE" not in os.environ
    older = tmp_path / "results" / next(iter(runs)) / "metrics.json"
    older.write_text("{}")  # as if the grid had begun on another machine, with another backbone
    bench(tmp_path, file)
    assert json.loads(older.read_text()) == metrics[0]
    with pytest.raises(EtagError, match="is the backbone of another run of a grid, which is not there"):
        resolve("digits", {"model.weights": "run:adapted/b0-1x2/fine-seed0"})


@pytest.mark.slow
def test_runs_without_their_adapted_backbone_are_not_started(tmp_path):
    block = {"methods": ["ncm"], "adaptation": {"classes": 2, "settings": {"train.batch_size": 1}}}
    (status,) = bench(tmp_path, grid_file(tmp_path, runs=[block], settings=TINY))
    assert status.state == "failed"
    assert recorded(tmp_path)["bench"]["runs"] == ["adapted/b0-1x2/fine-seed0", "b2-1x2/ncm-seed0"]


def test_a_variant_overrides_single_options_of_a_mapping_and_leaves_other_runs_alone(tmp_path):
    settings = TINY | {"train": {"weight_decay": 0.25}}
    variants = {"a": {"train": {"lr": 0.5}}, "b": {"train.base.epochs": 7}, "c": {}}
    runs = Grid.load(grid_file(tmp_path, settings=settings, variants=variants)).all_runs()
    a, b, c = (run.config.train for run in runs)
    assert (a.weight_decay, a.lr) == (0.25, 0.5)
    assert b.base["epochs"] == 7
    assert "epochs" not in c.base, "runs do not share the empty mapping of TINY"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"methods": []}, "methods"),
        ({"sedes": [1]}, "sedes"),
        ({"seeds": [-1]}, "seeds"),
        ({"settings": TINY | {"split": "b2-1x2"}}, "'split' cannot be a setting: list its values under 'splits'"),
        ({"settings": {"method": {"name": "fine"}}}, "'method.name' cannot be a setting"),
        ({"runs": 3}, "'runs' must be a list of blocks"),
        ({"notice": ["a"]}, "'notice' must be a text"),
        ({"bench": {"name": "x"}}, "bench"),
        ({"methods": ["fien"]}, "did you mean 'fine'"),
        ({"settings": TINY | {"train.epohcs": 2}}, "did you mean 'epochs'"),
        ({"runs": [{}, {}]}, "several runs with the name b2-1x2/fine-seed0"),
    ],
)
def test_invalid_grids(tmp_path, content, message):
    with pytest.raises(EtagError) as error:
        Grid.load(grid_file(tmp_path, **content)).plan(lambda _: None)
    assert message in str(error.value)


def test_missing_grids():
    with pytest.raises(EtagError, match="did you mean 'smoke'"):
        Grid.load("smoek")
    with pytest.raises(EtagError, match="does not exist"):
        Grid.load("nowhere.yaml")


@pytest.mark.slow
def test_finished_runs_are_skipped_and_results_alone_are_enough(tmp_path):
    file = grid_file(tmp_path, methods=["fine", "lwf"])
    assert {status.state for status in bench(tmp_path, file, jobs=2)} == {"done"}
    copied = tmp_path / "results" / "b2-1x2" / "fine-seed0"
    assert sorted(path.name for path in copied.iterdir()) == ["command.txt", "config.yaml", "metrics.json"]
    marks = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.json")}
    (tmp_path / "store").rename(tmp_path / "moved")
    runs = bench(tmp_path, file)
    assert [status.state for status in runs] == ["done", "done"]
    assert runs[0].accuracy == json.loads((copied / "metrics.json").read_text())["A_weighted"]
    assert not list((tmp_path / "store").rglob("metrics.json")), "nothing was run again"
    again = {path for path in tmp_path.rglob("metrics.json") if "moved" not in str(path)}
    assert {marks[path] for path in again} == {path.stat().st_mtime_ns for path in again}


@pytest.mark.slow
def test_a_failed_run_does_not_stop_the_others(tmp_path):
    file = grid_file(tmp_path, methods=["fine"], variants={"bad": {"train.base.lr": 1e30}, "good": {}})
    bad, good = bench(tmp_path, file)
    assert (bad.state, good.state) == ("failed", "done")
    assert "the loss term 'ce' became nan at step 2" in bad.reason
    assert not (tmp_path / "results" / "b2-1x2" / "fine-bad-seed0").exists()


@pytest.mark.slow
def test_results_of_another_configuration_are_replaced_only_with_restart(tmp_path):
    bench(tmp_path, grid_file(tmp_path))
    other = grid_file(tmp_path, settings=TINY | {"train.lr": 5e-3})
    (refused,) = bench(tmp_path, other)
    assert refused.state == "failed"
    assert "another configuration (train.lr is" in refused.reason
    (replaced,) = bench(tmp_path, other, restart=True)
    assert replaced.state == "done"
    config = yaml.safe_load((tmp_path / "results" / replaced.run.name / "config.yaml").read_text())
    assert config["train"]["lr"] == 5e-3


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_grid_is_resumed(tmp_path, sent):
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
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors == "interrupted: the same command resumes from here.\n"
    assert not (run / "metrics.json").exists()
    done = etag(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 runs are done: results" in done.stdout
    assert "resuming" in (run.parent / "gfr-seed0.log").read_text()


@pytest.mark.slow
def test_a_search_chooses_on_the_base_task_alone(tmp_path):
    search = {"over": {"train.lr": [1e-9, 3e-3]}, "split": "b1-1x1", "classes": 2}
    file = grid_file(tmp_path, search=search, settings=TINY | {"train.epochs": 3})
    runs = {status.run.name: status for status in bench(tmp_path, file)}
    tried = {name: status for name, status in runs.items() if name.startswith("search/")}
    assert list(tried) == ["search/b1-1x1/fine-lr=1e-09-seed0", "search/b1-1x1/fine-lr=0.003-seed0"]
    assert all(status.state == "done" for status in runs.values())
    best = max(tried.values(), key=lambda status: status.accuracy)
    chosen = runs["b2-1x2/fine-seed0"].run.config
    assert chosen.train.lr == best.run.config.train.lr
    for status in tried.values():
        metrics = json.loads((tmp_path / "results" / status.run.name / "metrics.json").read_text())
        whole = json.loads((tmp_path / "results" / "b2-1x2" / "fine-seed0" / "metrics.json").read_text())
        assert metrics["class_names"] == whole["class_names"][:2], "the base task's classes"
        assert sum(map(sum, metrics["confusion"])) == 2 * 3, "a fifth of 16 training images per class"


def test_estimates_cover_all_seeds_and_share_measurements(tmp_path):
    grid = Grid.load(grid_file(tmp_path, splits=["b2-1x2", "b0-2x2"], seeds=[0, 1, 2]))
    (first, second) = list(Bench(grid, tmp_path / "store", tmp_path / "results").estimates())
    assert first[:2] == ("b2-1x2/fine", 3)
    assert second[:2] == ("b0-2x2/fine", 3)
    assert first[3] == second[3] > 0, "as many images pass, at the same cost"
    assert first[2] == pytest.approx(second[2])


def test_a_second_bench_in_the_same_store_is_refused(tmp_path):
    with locked(tmp_path / "store" / ".lock", "busy"), pytest.raises(EtagError, match="another `etag bench` works"):
        bench(tmp_path, grid_file(tmp_path))


@pytest.mark.parametrize("name", recipes.grids())
def test_every_packaged_grid_can_be_planned(name):
    runs = Grid.load(name).all_runs()
    assert len(runs) == len(set(names(runs))) > 5


@pytest.mark.slow
def test_a_dry_run_changes_nothing(tmp_path):
    bench(tmp_path, grid_file(tmp_path))
    other = grid_file(tmp_path, settings=TINY | {"train.lr": 5e-3})
    shutil.rmtree(tmp_path / "results")
    before = sorted(tmp_path.rglob("*"))
    done = etag("bench", other, "--store", "store", "--results", "results", "--dry-run", "--restart", cwd=tmp_path)
    assert done.stdout.startswith("failed   b2-1x2/fine-seed0"), done.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_plug_ins_reach_the_runs(tmp_path):
    near = Path(__file__).parents[2] / "examples" / "near.py"
    words = ["bench", grid_file(tmp_path, methods=["near"]), "--store", "store", "--results", "results"]
    done = etag(*words, "--plugin", near, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "unknown method 'near'" in etag(*words, cwd=tmp_path).stderr


def recorded(tmp_path, results="results"):
    return yaml.safe_load((tmp_path / results / "grid.yaml").read_text())


def test_the_recorded_grid_has_the_notice_and_all_planned_runs(tmp_path):
    search = {"over": {"train.lr": [1e-9, 3e-3]}, "split": "b1-1x1", "classes": 2}
    blocks = [{"methods": ["fine"], "variants": {"bad": {"train.lr": 1e9}}}, {"methods": ["lwf"], "search": search}]
    file = Path(grid_file(tmp_path, runs=blocks, notice="Withdrawn: the lengths differ."))
    file.write_text("# a comment\n" + file.read_text())
    first = Bench(Grid.load(str(file)), tmp_path / "store", tmp_path / "results")
    first.planned = first.grid.all_runs()
    first._write_grid()  # nothing has been run yet
    content = recorded(tmp_path)
    assert content["notice"] == "Withdrawn: the lengths differ."
    assert content["bench"]["runs"] == [
        "search/b1-1x1/lwf-lr=1e-09-seed0",
        "search/b1-1x1/lwf-lr=0.003-seed0",
        "b2-1x2/fine-bad-seed0",
        "b2-1x2/lwf-seed0",
    ]
    text = (tmp_path / "results" / "grid.yaml").read_text()
    assert text.startswith(file.read_text()), "the grid's own text is unchanged, with its comments"


@pytest.mark.parametrize(
    "text", ['{"recipe": "digits", "methods": ["fine"]}', "---\nrecipe: digits\nmethods: [fine]\n...\n"]
)
def test_a_grid_in_any_yaml_style_can_be_recorded_and_read_again(tmp_path, text):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    grid = Grid.load(str(file))
    (tmp_path / "grid.yaml").write_text(grid.recorded("etag bench mine.yaml", grid.all_runs(), "32-true"))
    again = Grid.load(str(tmp_path / "grid.yaml"))
    assert (again.name, again.blocks) == ("mine", grid.blocks)
    assert again.recorded("etag bench mine.yaml", again.all_runs(), "32-true") == (tmp_path / "grid.yaml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--results", "my results"]], ids=["default folder", "own folder"])
def test_the_recorded_command_of_a_grid_given_as_a_file_works(tmp_path, options):
    file = Path(grid_file(tmp_path))
    assert etag("bench", file, "--store", "store", *options, cwd=tmp_path).returncode == 0
    file.unlink()
    before = recorded(tmp_path, options[1] if options else "results/tiny")
    command = shlex.split(before["bench"]["command"])
    assert command[:2] == ["etag", "bench"]
    done = etag(*command[1:], "--dry-run", cwd=tmp_path)
    assert done.stdout == "done     b2-1x2/fine-seed0\n", done.stderr
    done = etag(*command[1:], "--store", "store", cwd=tmp_path)
    assert "1 of 1 runs are done" in done.stdout, done.stderr
    assert recorded(tmp_path, options[1] if options else "results/tiny") == before
    assert sorted(path.name for path in tmp_path.glob("results*/*")) == ([] if options else ["tiny"])


def test_a_name_in_a_recorded_grid_cannot_leave_its_folder(tmp_path):
    grid = Grid.load(grid_file(tmp_path))
    text = grid.recorded("etag bench x", [], "32-true").replace("name: tiny", "name: ../../evil")
    (tmp_path / "grid.yaml").write_text(text)
    assert Grid.load(str(tmp_path / "grid.yaml")).name == "grid"


def test_a_packaged_grid_is_recorded_by_its_name(tmp_path):
    smoke = Grid.load("smoke")
    assert Bench(smoke, tmp_path, Path("results/smoke")).command == "etag bench smoke"
    assert Bench(smoke, tmp_path, Path("else where")).command == "etag bench smoke --results 'else where'"


# -- the time left ---------------------------------------------------------------------------------


def waiting_and_done(tmp_path, seeds, seconds):
    """A bench whose first runs took these seconds, and the others wait."""
    runs = Grid.load(grid_file(tmp_path, seeds=list(range(seeds)))).all_runs()
    whole = Bench(Grid.load(grid_file(tmp_path)), tmp_path / "store", tmp_path / "results")
    whole.runs = {run.name: RunStatus(run) for run in runs}
    for run, taken in zip(runs, seconds, strict=False):
        whole.runs[run.name] = RunStatus(run, "done", seconds=taken)
    return whole


def test_runs_that_would_wait_for_each_others_features_do_not_start_together(tmp_path):
    whole, started = waiting_and_done(tmp_path, 4, []), []
    for status, weights in zip(whole.runs.values(), ["a.pth", "a.pth", "b.pth", "a.pth"], strict=True):
        model = status.run.config.model.model_copy(update={"weights": weights})
        status.run = replace(status.run, config=status.run.config.model_copy(update={"model": model}))
    while status := whole._next():
        started.append(list(whole.runs.values()).index(status))
        status.state = "running"
    assert started == [0, 2, 1, 3], "those with other weights first, and none is left out"


@pytest.mark.slow
def test_the_time_of_a_finished_run_is_its_wall_time(tmp_path):
    (status,) = bench(tmp_path, grid_file(tmp_path))
    metrics = json.loads((tmp_path / "results" / status.run.name / "metrics.json").read_text())
    measured = sum(metrics["train_seconds"]) + sum(metrics["test_seconds"])
    assert status.seconds > measured + 0.5, "starting Python alone takes longer"
    (again,) = bench(tmp_path, grid_file(tmp_path))
    assert again.seconds == pytest.approx(measured), "the rest of an earlier run is not known"


def test_the_time_left(tmp_path):
    assert waiting_and_done(tmp_path, 3, []).seconds_left(1) is None
    assert waiting_and_done(tmp_path, 4, [10.0, 20.0]).seconds_left(1) == pytest.approx(30)
    assert waiting_and_done(tmp_path, 4, [10.0, 20.0]).seconds_left(2) == pytest.approx(15)
    assert waiting_and_done(tmp_path, 3, [10.0, 20.0]).seconds_left(8) == pytest.approx(15), "one run is not divided"


def test_the_time_left_of_a_running_run_counts_from_its_start(tmp_path):
    whole = waiting_and_done(tmp_path, 2, [100.0])
    running = whole.runs["b2-1x2/fine-seed1"]
    running.state, running.started = "running", time.monotonic() - 40
    assert whole.seconds_left(1) == pytest.approx(60, abs=5)
    running.started = time.monotonic() - 4000
    assert whole.seconds_left(1) == 0


# -- GPUs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "count", "devices"),
    [
        (None, 2, ["0", "1"]),
        ("2,5", 2, ["2", "5"]),
        ("GPU-1b3c, GPU-77aa", 2, ["GPU-1b3c", "GPU-77aa"]),
        ("3,99,4", 1, ["3"]),  # CUDA ignores what follows an unknown number
        ("", 0, []),
    ],
)
def test_visible_devices_are_those_of_the_parent(monkeypatch, variable, count, devices):
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert visible_devices() == devices


class Process:
    """A process that ends when `code` is set."""

    def __init__(self, _, env, **rest):
        self.device, self.code = env.get("CUDA_VISIBLE_DEVICES"), None

    def poll(self):
        return self.code


def test_runs_share_out_the_visible_devices(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,GPU-77aa")
    monkeypatch.setattr("etag.experiments.local_workers.Popen", Process)
    (run,) = Grid.load(grid_file(tmp_path)).all_runs()
    workers = LocalWorkers(3)
    first, second = (workers.start(run, tmp_path / "run") for _ in range(2))
    assert (first._process.device, second._process.device) == ("6", "GPU-77aa")
    second._process.code = 0
    assert workers.start(run, tmp_path / "run")._process.device == "GPU-77aa", "the device that is free"
    (both,) = Grid.load(grid_file(tmp_path, settings=TINY | {"runtime.devices": 2})).all_runs()
    assert sorted(workers.start(both, tmp_path / "run")._process.device.split(",")) == ["6", "GPU-77aa"]
    (none,) = Grid.load(grid_file(tmp_path, settings=TINY | {"runtime.accelerator": "cpu"})).all_runs()
    assert workers.start(none, tmp_path / "run")._process.device == "6,GPU-77aa", "as inherited"
