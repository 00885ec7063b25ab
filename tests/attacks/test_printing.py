"""Hostile names, streams and run directories: what is printed is harmless, and everything ends in one sentence."""

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from rich.console import Console
from tests.app.conftest import etag, refused
from tests.cli.test_bad_input import bomb
from tests.report.conftest import write_run
from tests.runs import SMALL, small_config

from etag.cli import main
from etag.core.errors import EtagError
from etag.core.scenario import Task
from etag.engine.progress import ProgressBars, StepLog
from etag.experiments import yaml_files
from etag.experiments.bench import Bench, RunStatus
from etag.experiments.grid import Grid
from etag.experiments.run import run
from etag.learner.versions import seal
from etag.report.comparison_page import write_comparison
from etag.report.features import read_features
from etag.report.page import write_run_report
from etag.report.records import read_run

COMMAND = [sys.executable, "-m", "etag.cli"]
HOSTILE = "\x1b[2J\x1b]0;gone\x07\x9b31m\u202ereversed\x7f\r"
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


pytestmark = pytest.mark.usefixtures("no_hang")


def ended(*words, stdin=b"", encoding="utf-8", out=None):
    """The exit code, standard output and standard error of a command whose streams have this encoding."""
    output, errors = io.BytesIO(), io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["etag", *map(str, words)])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding))
        patch.setattr(sys, "stdout", out or io.TextIOWrapper(output, encoding))
        patch.setattr(sys, "stderr", io.TextIOWrapper(errors, encoding, errors="backslashreplace"))
        with pytest.raises(SystemExit) as end:
            main()
        sys.stderr.flush()
        return end.value.code or 0, output.getvalue(), errors.getvalue().decode(encoding)


def harmless(*texts):
    """Fail if a terminal would do something else than show these texts."""
    for text in texts:
        found = UNPRINTABLE.search(text)
        assert found is None, (found, text)


def one_sentence(work, *says):
    start = time.process_time()
    with pytest.raises(EtagError) as refusal:
        work()
    assert time.process_time() - start < 4
    message = str(refusal.value)
    assert "\n" not in message
    for words in says:
        assert words in message


# -- names on a terminal ---------------------------------------------------------------------------

NAMES = [f"{HOSTILE}cat", "=HYPERLINK(1)", "[red]dog[/red]"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "run"
    run(small_config("fine", **{"split": "b2-1x1", "train.epochs": 1}), path)
    return path


@pytest.fixture
def model(trained, tmp_path):
    """A model whose classes have hostile names."""
    path = tmp_path / "model"
    shutil.copytree(trained, path)
    (file,) = path.glob("versions/*/about.json")
    about = json.loads(file.read_text())
    for lesson in about["history"]:
        lesson["classes"], lesson["date"] = NAMES, f"{HOSTILE}today"
    about = seal(about | {"classes": NAMES})
    file.write_text(json.dumps(about))
    (path / "current").write_text(f"{file.parent.name} {about['checksum']}")
    return path


@pytest.fixture
def pictures(tmp_path):
    """Pictures with names that no sane person would choose; one is no UTF-8."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(buffer, "png")
    names = [b"\xff\xfe", b"line\nbreak", b"\x1b[31mred", b"=1+1", b"@x", b"[red]x", b"tab\tx"]
    names = [name + b".png" for name in names]
    for name in names:
        with open(os.path.join(os.fsencode(folder), name), "wb") as file:
            file.write(buffer.getvalue())
    return folder, names


def test_names_in_a_model_are_printed_harmlessly(model, tmp_path):
    info = etag("info", model)
    assert info.returncode == 0, info.stderr
    harmless(info.stdout)
    assert r"\x1b[2J" in info.stdout
    assert "[red]dog[/red]" in info.stdout
    harmless(etag("info", model, "--json").stdout)
    assert json.loads(etag("info", model, "--json").stdout)["classes"] == NAMES


def predictions(model, pictures, form):
    done = etag("predict", model, pictures[0], "--format", form, "--top", 3)
    assert done.returncode == 0, done.stderr
    harmless(done.stdout)
    return done.stdout


def test_predictions_are_printed_harmlessly_in_every_format(model, pictures):
    folder, names = pictures
    lines = predictions(model, pictures, "table").splitlines()
    assert len(lines) == len(names), "one line per picture"
    assert all(line.count("\t") == 3 for line in lines)
    rows = list(csv.DictReader(io.StringIO(predictions(model, pictures, "csv"))))
    assert len(rows) == 3 * len(names)
    assert {row["class"] for row in rows} >= {"'=HYPERLINK(1)", "[red]dog[/red]"}
    found = [json.loads(line) for line in predictions(model, pictures, "json").splitlines()]
    assert {os.fsencode(one["path"]) for one in found} == {os.path.join(os.fsencode(folder), name) for name in names}
    assert {each["class"] for one in found for each in one["predictions"]} == set(NAMES)


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_a_terminal_of_ascii_letters_gets_all_names(model, pictures, form, monkeypatch):
    folder, names = pictures
    monkeypatch.chdir(folder)
    given = b"\n".join(name for name in names if b"\n" not in name)
    code, printed, errors = ended("predict", model, "--format", form, stdin=given, encoding="ascii")
    assert code == 0, errors
    assert len(printed.splitlines()) == len(names) - 1 + (form == "csv")
    if form == "csv":
        assert b"\n'=1+1.png," in printed
        assert b"\n'@x.png," in printed


def test_a_list_of_files_with_nul_and_other_bytes_is_read(model):
    given = b"a\0b.png\n\xff\xfe.png\nc*\0.png\n"
    code, _, errors = ended("predict", model, stdin=given)
    assert code in (1, 2)
    harmless(errors)


def test_errors_are_printed_harmlessly(tmp_path):
    for words in (
        ["run", f"{HOSTILE}.yaml"],
        ["run", f"{HOSTILE}"],
        ["run", "digits", "--method", HOSTILE],
        ["run", "digits", "--set", f"{HOSTILE}=1"],
        ["run", "digits", "--set", HOSTILE],
        ["run", "digits", "--split", HOSTILE],
        ["info", tmp_path / f"{HOSTILE}model"],
        ["report", tmp_path / f"{HOSTILE}runs"],
        ["bench", f"{HOSTILE}grid.yaml"],
        ["learn", tmp_path / "model", tmp_path / f"{HOSTILE}folder"],
    ):
        harmless(refused(etag(*words)))


def test_tables_show_names_as_they_are(capsys, monkeypatch):
    from etag.cli import _show

    monkeypatch.setenv("COLUMNS", "200")
    _show([{"name": "[red]x[/red]", "found": HOSTILE}], ("name", "found"), as_json=False)
    printed = capsys.readouterr().out
    assert "[red]x[/red]" in printed
    harmless(printed)


def test_the_table_of_a_grid_shows_names_as_they_are(tmp_path):
    from etag.cli.grids import _table

    (tmp_path / "grid.yaml").write_text("recipe: digits\nmethods: [fine]\nseeds: [0]\nvariants: {'[red]x': {}}\n")
    (planned,) = Grid.load(str(tmp_path / "grid.yaml")).all_runs()
    console = Console(file=io.StringIO(), width=200)
    console.print(_table([RunStatus(planned, "failed", f"[bold]{HOSTILE}")], None))
    printed = console.file.getvalue()
    assert "[red]x" in printed
    assert "[bold]" in printed
    harmless(printed)


def test_progress_bars_show_names_as_they_are():
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    bars = ProgressBars(console, f"[red]data[/red] {HOSTILE}", [10])
    bars._bars.refresh()
    bars.close()
    printed = console.file.getvalue()
    assert "[red]data[/red]" in printed
    assert "\x1b[2J" not in printed
    assert "\u202e" not in printed


# -- streams ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["recipes", "--json"], ["recipes"], ["--help"]], ids=" ".join)
def test_a_full_disk_behind_standard_output_is_one_sentence(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_predictions_into_a_full_disk_are_one_sentence(trained, pictures, form):
    with open("/dev/full", "w") as full:
        code, _, errors = ended("predict", trained, pictures[0], "--format", form, out=full)
    assert code == 2
    assert errors == "error: No space left on device.\n"


def test_a_reader_that_has_enough_ends_the_command_quietly():
    process = subprocess.Popen([*COMMAND, "recipes", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) != 0


LONG = "a" * 300


@pytest.mark.parametrize(
    "words",
    [
        ["info", LONG],
        ["predict", LONG, "x.png"],
        ["evaluate", LONG, "folder"],
        ["forget", LONG, "cat"],
        ["export", LONG, "--torch", "x.pt2"],
        ["models", "rollback", LONG],
        ["models", "strip", LONG],
        ["run", f"{LONG}.yaml"],
        ["run", "digits", "--method", "fine", "--out", LONG],
        ["run", "digits", "--method", "fine", "--split", "b2-1x1", "--set", f"data.order={LONG}"],
        ["run", "digits", "--method", "fine", "--split", "b2-1x1", "--weights", LONG],
        ["run", "--data", LONG],
        ["bench", f"{LONG}.yaml"],
        ["bench", "smoke", "--store", LONG],
        ["bench", "smoke", "--results", LONG],
        ["report", LONG],
        ["learn", LONG, "images"],
        ["data", "folders", "digits", LONG],
        ["data", "get", "mnist", "--path", "blocked/below"],
        ["info", "blocked/below"],
        ["report", "blocked/below"],
        ["run", "digits", "--method", "fine", "--split", "b2-1x1", "--out", "blocked/below"],
        ["data", "folders", "digits", "blocked/below"],
    ],
    ids=lambda words: " ".join(words).replace(LONG, "LONG"),
)
def test_paths_that_cannot_be_are_one_sentence(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blocked").write_text("a file")
    for name in ("x", "y"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(2):
            Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "images" / name / f"{number}.png")
    refused(etag(*words))


def test_a_traceback_can_be_asked_for(monkeypatch):
    monkeypatch.setenv("ETAG_TRACEBACK", "1")
    monkeypatch.setattr(sys, "argv", ["etag", "report", LONG])
    with pytest.raises(OSError, match="File name too long"):
        main()


# -- reports ---------------------------------------------------------------------------------------


def test_names_in_a_report_are_letters_and_nothing_else(tmp_path):
    """Names from metrics.json and from directories, in HTML, CSV, Markdown, LaTeX, figures, and names of files."""
    harm = "<script>alert(1)</script>"
    names = ["=1+1", "@SUM(A1)", "+x", "-y", harm, r"$\frac{", r"\input{/etc/passwd}", "a\nb", "\x1b[2J", "|"]
    runs = tmp_path / "deep" / "er" / "runs"
    few = {"names": names, "classes": (8, 2), "optional": False}
    write_run(runs / "a-seed0", method=f"../../../evil{harm}", **few, machine=harm, versions={harm: harm})
    write_run(runs / "b-seed0", method="=cmd()", **few, data=r"$\frac{ % \end{tabular}", remarks={harm: harm})
    write_run(runs / "=cmd()-$x_seed0", method="=cmd()", **few, data=r"$\frac{ % \end{tabular}", seed=3)
    (runs / "a-seed0" / "command.txt").write_bytes(b"\xff\xfe" + harm.encode())
    write_comparison([runs], runs / "report.html")
    pages = [runs / "report.html", write_run_report(runs / "a-seed0")]
    for page in pages:
        text = page.read_text()
        assert "<script" not in text
        assert "&lt;script&gt;" in text
    for file in runs.rglob("*.csv"):
        for row in csv.reader(file.open(newline="")):
            for cell in row:
                assert not re.match(r"[=+@\t\r]|-(?![\d.])", cell), (file.name, cell)
                harmless(cell)
    for file in (runs / "tables").glob("*.tex"):
        text = file.read_text()
        assert r"\input" not in text
        assert text.count(r"\end{tabular}") == 1
        harmless(text.replace("\n", ""))
    for file in (runs / "tables").glob("*.md"):
        assert re.search(r"(?<!\\)<script", file.read_text()) is None
    assert {path.name for path in tmp_path.iterdir()} == {"deep"}
    assert {path.name for path in (tmp_path / "deep" / "er").iterdir()} == {"runs"}
    assert not list(tmp_path.rglob("*evil*/*"))


@pytest.mark.parametrize(
    "changes",
    [
        {"parameters": 10**400},
        {"parameters": -1},
        {"stored_bytes": 10**400},
        {"parameters_by_part": {"head": 10**400}},
        {"stored_bytes_by_part": {"head": -5}},
        {"train_seconds": [float("inf")] * 6},
        {"train_seconds": [float("nan")] * 6},
        {"test_seconds": [1e308] * 6},
        {"train_seconds": [-1.0] * 6},
        {"A_weighted": float("inf")},
        {"A_weighted": 1e300},
        {"step_accuracy_weighted": [float("-inf")] * 6},
        {"accuracy_matrix": [[1e300] * 6] * 6},
        {"task_aware_matrix": [[float("inf")] * 6] * 6},
        {"confusion": [[10**30] * 10] * 10},
        {"confusion": [[float("nan")] * 10] * 10},
        {"seed": 10**400},
        {"seed": -1},
        {"date": "2025-03-01T12:00:00"},
        {"date": 1e300},
        {"method": "m" * 100_000},
        {"method": ""},
        {"method": 3},
        {"data": "d" * 100_000},
        {"split": "s" * 100_000},
        {"class_names": ["n" * 100_000] * 10},
        {"class_names": ["n"] * 100_000},
        {"versions": {str(number): "1" for number in range(10_000)}},
        {"classes_per_task": [10**9] * 6},
        {"classes_per_task": [-1] * 6},
        {"classes_in_task": [10**30] * 6},
        {"remarks": {"a": "b" * 10_000_000}},
    ],
    ids=lambda changes: str(changes)[:50],
)
def test_numbers_that_cannot_be_are_refused(changes, tmp_path):
    path = write_run(tmp_path / "run", optional=False)
    file = path / "metrics.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    one_sentence(lambda: read_run(path), "metrics.json")


FILES = ["metrics.json", "config.yaml", "steps.jsonl", "features/task-001.npz", "generated/task-001.png"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["fifo", "device", "directory", "binary"])
def test_files_of_a_run_that_are_something_else_are_one_sentence(name, kind, tmp_path):
    path = write_run(tmp_path / "run", classes=(2, 1))
    file = path / name
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    match kind:
        case "fifo":
            os.mkfifo(file)
        case "device":
            file.symlink_to("/dev/zero")
        case "directory":
            file.mkdir()
        case "binary":
            file.write_bytes(b"\xff\xfe\0\x80" * 100)
    one_sentence(lambda: write_run_report(path), file.name)


def archive(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)


def npy(shape, kind="<f4", data=b""):
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + data


def test_bombs_in_saved_features_are_refused(tmp_path):
    file = tmp_path / "task-001.npz"
    zeros = bytes(100_000_000)
    archive(file, features=npy((25_000, 1000), data=zeros), labels=npy((25_000,), "<i8", zeros[:200_000]))
    assert file.stat().st_size < 1_000_000
    one_sentence(lambda: read_features(file, 10), "task-001.npz")
    archive(file, features=npy((10**12, 10)), labels=npy((10**12,), "<i8"))
    one_sentence(lambda: read_features(file, 10), "task-001.npz")
    file.write_bytes(npy((10**11, 10)))
    one_sentence(lambda: read_features(file, 10), "task-001.npz")


def test_hostile_pictures_are_refused(tmp_path):
    path = write_run(tmp_path / "run")
    (path / "generated").mkdir()
    file = path / "generated" / "task-001.png"
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(buffer, "png")
    good = buffer.getvalue()
    no_width = bytearray(good)
    no_width[16:20] = bytes(4)
    no_width[29:33] = zlib.crc32(no_width[12:29]).to_bytes(4, "big")
    tiff = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tiff, "tiff")
    for data in (good[:40], good[:-20], b"", bytes(no_width), tiff.getvalue(), bomb(), good + bytes(100_000_000)):
        file.write_bytes(data)
        one_sentence(lambda: read_run(path), "task-001.png")


# -- the log of steps ------------------------------------------------------------------------------


def task(index):
    return Task(index, 2 * index, 2, None, None, num_base=2)


def lines(path):
    return [(line["task"], line["step"]) for line in map(json.loads, path.read_text().splitlines())]


def write_log(path):
    log = StepLog(path)
    log.on_task_begin(task(0), {})
    log.on_phase_begin("solver", 20, 1)
    for step in (10, 20):
        log.on_step(step, 0, 1e-3, {"ce": 1.0}, 40)
    log.close()


def resume(path, saved=None):
    log = StepLog(path)
    log.on_task_begin(task(1), saved or {})
    log.on_phase_begin("solver", 20, 1)
    log.on_step(10, 0, 1e-3, {"ce": 1.0}, 40)
    log.close()


GOOD = '{"task": 0, "phase": "solver", "step": 30, "epoch": 0, "lr": 1, "terms": {}}\n'
DAMAGE = {
    "garbage": bytes(range(256)) * 50,
    "half a line": b'{"task": 0, "pha',
    "not UTF-8": b'{"task": 0, "phase": "\xff"}\n',
    "a number": b"3\n",
    "a list": b"[]\n",
    "null": b"null\n",
    "a text as task": b'{"task": "0", "phase": "solver", "step": 1}\n',
    "no step": b'{"task": 1, "phase": "solver"}\n',
    "a list as phase": b'{"task": 1, "phase": ["solver"], "step": 1}\n',
    "deep": b"[" * 100_000 + b"\n",
    "a giant number": b'{"task": ' + b"9" * 10_000 + b"}\n",
    "a line of 100 MB": b'{"task": 0, "x": "' + b"x" * 100_000_000 + b'"}\n',
    "NUL": bytes(5000),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_log_is_cut_back_and_does_not_block_the_resume(name, tmp_path, capfd):
    path = tmp_path / "steps.jsonl"
    write_log(path)
    with path.open("ab") as file:
        file.write(DAMAGE[name])
    start = time.process_time()
    resume(path, {"solver": 0})
    assert time.process_time() - start < 4
    assert lines(path) == [(0, 10), (0, 20), (1, 10)]
    (told,) = capfd.readouterr().err.splitlines()
    assert "steps.jsonl" in told
    assert "damaged" in told


def test_good_lines_after_a_damaged_one_stay(tmp_path, capfd):
    path = tmp_path / "steps.jsonl"
    write_log(path)
    path.write_bytes(b"\xff\n" + path.read_bytes() + b"[]\n" + GOOD.encode())
    resume(path)
    assert lines(path) == [(0, 10), (0, 20), (0, 30), (1, 10)]
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_a_log_that_lost_its_end_is_reported(tmp_path, capfd):
    path = tmp_path / "steps.jsonl"
    write_log(path)
    resume(path, {"solver": 30})
    (told,) = capfd.readouterr().err.splitlines()
    assert "steps.jsonl" in told
    assert lines(path) == [(0, 10), (0, 20), (1, 10)]


def test_a_sound_log_is_not_reported(tmp_path, capfd):
    path = tmp_path / "steps.jsonl"
    write_log(path)
    resume(path)
    resume(path, {"solver": 10, "features": None})
    assert lines(path) == [(0, 10), (0, 20), (1, 10), (1, 10)]
    assert capfd.readouterr().err == ""


def test_a_missing_log_is_begun_again(tmp_path):
    resume(tmp_path / "steps.jsonl")
    assert lines(tmp_path / "steps.jsonl") == [(1, 10)]


@pytest.mark.parametrize("kind", ["fifo", "link", "device"])
def test_a_log_that_is_no_file_is_replaced(kind, tmp_path, capfd):
    path, victim = tmp_path / "steps.jsonl", tmp_path / "victim"
    victim.write_text("precious\n")
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(victim if kind == "link" else "/dev/zero")
    resume(path)
    assert victim.read_text() == "precious\n"
    assert lines(path) == [(1, 10)]
    assert len(capfd.readouterr().err.splitlines()) == 1


# -- grids -----------------------------------------------------------------------------------------

NO_TIMES = '{"A_weighted": 1, "train_seconds": 3, "test_seconds": []}'
METRICS = ["", "{", "[]", "{}", '{"A_weighted": "x"}', NO_TIMES, "[" * 9999]


@pytest.mark.parametrize("content", [*METRICS, b"\xff"], ids=lambda content: repr(content)[:20])
def test_damaged_metrics_do_not_stop_a_grid(content, tmp_path):
    (tmp_path / "grid.yaml").write_text("recipe: digits\nmethods: [fine]\nseeds: [0]\n")
    bench = Bench(Grid.load(str(tmp_path / "grid.yaml")), tmp_path / "store", tmp_path / "results")
    (planned,) = bench.grid.all_runs()
    path = tmp_path / "results" / planned.name
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml_files.write(planned.config.to_json()))
    (path / "metrics.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    status = bench.status(planned)
    assert status.state == "failed"
    assert "metrics.json is damaged" in status.reason


def processes(marker):
    """The processes of `etag run` whose command line has this text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it has ended since
                continue
            if b"run" in words and any(marker.encode() in word for word in words):
                found.append(int(entry.name))
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads processes in /proc")
def test_the_runs_of_a_killed_grid_end(tmp_path):
    signal.alarm(120)
    settings = SMALL | {"train.epochs": 12, "train.batch_size": 8, "runtime.checkpoint_steps": 10}
    settings |= {"evaluation.features": "none"}
    del settings["split"]
    grid = {"recipe": "digits", "methods": ["fine"], "splits": ["b2-1x1"], "seeds": [0], "settings": settings}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
    words = [*COMMAND, "bench", "grid.yaml", "--store", str(tmp_path / "store"), "--results", "results"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    bench = subprocess.Popen(words, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while len(list((tmp_path / "store").glob("*/*/unfinished/checkpoints/*"))) < 1:
            assert bench.poll() is None
            time.sleep(0.05)
        running = processes(str(tmp_path))
        assert len(running) == 1
        bench.kill()
        bench.wait()
        end = time.monotonic() + 60
        while processes(str(tmp_path)) and time.monotonic() < end:
            time.sleep(0.1)
        assert processes(str(tmp_path)) == []
    finally:
        bench.kill()
        for number in processes(str(tmp_path)):
            os.kill(number, signal.SIGKILL)
    for log in (tmp_path / "store").glob("*/*.log"):
        assert "Traceback" not in log.read_text()
