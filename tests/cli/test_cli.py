"""The command line: most of it in this process, some in processes of its own as a user calls it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.app.conftest import etag

SMALL = [
    *("--split", "b2-2x1", "--set", "model.width=4", "--set", "train.epochs=1"),
    *("--set", "data.train_per_class=16", "--set", "data.test_per_class=4"),
]
COMMAND = [sys.executable, "-m", "etag.cli"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cli")


def test_help_does_not_import_torch(folder):
    probe = "import sys, etag.cli; sys.argv = ['etag', '--help']\ntry: etag.cli.main()\nexcept SystemExit: pass\n"
    probe += "heavy = {'torch', 'lightning_fabric', 'matplotlib', 'sklearn', 'numpy', 'pydantic', 'ray'}\n"
    probe += "heavy &= set(sys.modules)\n"
    probe += "print('heavy:', sorted(heavy))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, cwd=folder, timeout=60)
    assert "heavy: []" in done.stdout
    assert "run" in done.stdout


@pytest.mark.parametrize(
    ("command", "names"), [("methods", {"fine", "joint", "etag"}), ("data", {"digits", "cifar100"})]
)
def test_lists_are_tables_for_people_and_json_for_programs(command, names, folder):
    listed = json.loads(etag(command, "--json", cwd=folder).stdout)
    assert names <= {entry["name"] for entry in listed}
    table = etag(command, cwd=folder).stdout
    assert all(name in table for name in names)


def test_methods_json_describes_every_option(folder):
    methods = {entry["name"]: entry for entry in json.loads(etag("methods", "--json", cwd=folder).stdout)}
    assert methods["etag"]["options"]["properties"]["lambda_l2"]["description"]
    assert methods["joint"]["all_data"]
    assert not methods["etag"]["exemplars"]


def test_recipes_are_listed(folder):
    assert {"digits"} <= {entry["name"] for entry in json.loads(etag("recipes", "--json", cwd=folder).stdout)}


def test_run_writes_a_directory_with_a_report_and_a_comparison_can_be_made(folder):
    done = etag("run", "--method", "fine", *SMALL, "--seed", 2, cwd=folder)
    assert done.returncode == 0, done.stderr
    where = folder / "runs" / "fine-digits-b2-2x1-seed2"
    assert {"config.yaml", "metrics.json", "current", "versions", "tensors", "steps.jsonl", "report.html"} <= {
        path.name for path in where.iterdir()
    }
    assert "A_weighted" in done.stdout
    assert str(Path("runs") / where.name / "report.html") in done.stdout
    assert "\x1b" not in done.stdout, "no control codes off a terminal"
    assert done.stderr == ""
    etag("run", "--method", "joint", *SMALL, "--seed", 2, "--out", "other", cwd=folder)
    compared = etag("report", where, "other", "--out", "page.html", "--figure", "curves.png", cwd=folder)
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert compared.returncode == 0, compared.stderr
    assert "Joint" in (folder / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "--method", "etga"], "did you mean 'etag'"),
        (["run", "--data", "digit"], "did you mean 'digits'"),
        (["run", "--data", "cifar100"], "was not found"),
        (["bench", "cifar100-pretrained", "--store", "store", "--results", "found"], "was not found"),
        (["run", "--split", "b50-5x10"], "needs 100 classes, but the data has only 10"),
        (["run", "--split", "halves"], "such as b50-5x10"),
        (["run", "--set", "model.backbone=resnet81"], "unknown backbone 'resnet81': did you mean 'resnet18'"),
        (["run", "--set", "train.epochs=x"], "option 'train.epochs' cannot be 'x'"),
        (["run", "nothing"], "unknown recipe"),
        (["run", "--set", "data.order=missing.txt"], "cannot be read"),
        (["run", "--set", "data.path=/no/such/folder", "--data", "cifar100"], "/no/such/folder"),
        (["report", "nowhere"], "nowhere"),
        (["report", "runs", "--figure", "curves.txt"], "must end in .svg, .pdf or .png"),
    ],
)
def test_mistakes_end_in_one_sentence_and_exit_code_2(words, says, folder):
    done = etag(*words, cwd=folder, ETAG_DATA="", XDG_CACHE_HOME=str(folder))
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_a_directory_that_cannot_be_written_is_refused_before_training(folder):
    blocker = folder / "file"
    blocker.write_text("")
    done = etag("run", "--method", "fine", *SMALL, "--out", blocker / "run", cwd=folder)
    assert done.returncode == 2
    assert "error: the directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_control_c_ends_with_130_and_no_traceback(folder):
    words = ["run", "--method", "joint", "--set", "train.epochs=500", "--out", "interrupted"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*COMMAND, *words], cwd=folder, env=env, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (folder / "interrupted" / "steps.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "the same command resumes in 'interrupted'" in errors


def test_the_python_interface_does_what_the_command_does(folder):
    import etag as package

    settings = {"model.width": 4, "train.epochs": 1, "data.train_per_class": 16, "data.test_per_class": 4}
    metrics = package.run(method="fine", split="b2-2x1", seed=2, out=folder / "api", settings=settings)
    etag("run", "--method", "fine", *SMALL, "--seed", 2, "--out", "command", cwd=folder)
    by_command = json.loads((folder / "command" / "metrics.json").read_text())
    assert metrics["accuracy_matrix"] == by_command["accuracy_matrix"]
    assert (folder / "api" / "report.html").is_file()


@pytest.mark.slow
def test_two_processes_speak_and_write_as_one(folder):
    quick = ["--method", "fine", *SMALL, "--set", "runtime.devices=2", "--set", "runtime.accelerator=cpu"]
    command, env = [*COMMAND, "run", *map(str, quick), "--out", "both"], os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("A_weighted") == done.stdout.count("report: ") == 1
    assert done.stdout.count("task 1/3") == 1
    assert (folder / "both" / "report.html").is_file()
