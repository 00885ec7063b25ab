"""Real faults: what is printed, and that nothing is lost."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from etag.core.errors import EtagError
from etag.core.files import locked, write_atomically
from etag.engine import training
from etag.experiments.run import run
from etag.experiments.run_directory import RunDirectory

SLOW = ["run", "--method", "fine", "--set", "train.epochs=400", "--set", "model.width=4", "--out", "run"]


def start(folder, *words, **more):
    command = [sys.executable, "-m", "etag.cli", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, **pipes, **more)


def wait_for(path, process):
    while not (path.is_file() and path.stat().st_size):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.mark.slow
def test_a_second_process_is_refused_while_the_first_lives_and_not_when_it_was_killed(tmp_path):
    first = start(tmp_path, *SLOW)
    wait_for(tmp_path / "run" / "steps.jsonl", first)
    second = start(tmp_path, *SLOW)
    errors = second.communicate(timeout=60)[1]
    assert second.returncode == 2
    assert "error: another process is using 'run': wait for it, or choose --out." in errors
    first.send_signal(signal.SIGKILL)
    first.wait()
    with RunDirectory(tmp_path / "run").locked():
        pass


def test_a_lock_is_released_at_its_end(tmp_path):
    for _ in range(2):
        with (
            locked(tmp_path / "lock", "busy"),
            pytest.raises(EtagError, match="busy"),
            locked(tmp_path / "lock", "busy"),
        ):
            pass


def test_a_folder_of_somebody_else_is_left_as_it_was(small, tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "mine.txt").write_text("dear")
    with pytest.raises(EtagError, match="is not a run directory"):
        run(small("fine"), tmp_path / "letters", restart=True)
    assert [path.name for path in (tmp_path / "letters").iterdir()] == ["mine.txt"]


@pytest.fixture
def small_disk(tmp_path):
    """A disk of four megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is refused here; tests with a limit on the size of files replace this one")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 40_000])
def test_a_disk_that_fills_up_loses_nothing(small_disk, left):
    words = [
        "run",
        "--method",
        "fine",
        "--set",
        "model.width=4",
        "--set",
        "runtime.checkpoint_seconds=0",
        "--out",
        "run",
    ]
    process = start(small_disk, *words)
    wait_for(small_disk / "run" / "unfinished" / "checkpoints" / "checkpoint-1.json", process)
    process.kill()
    process.communicate()
    ballast, data = small_disk / "ballast", os.statvfs(small_disk)
    ballast.write_bytes(bytes(data.f_bavail * data.f_bsize - left))
    saved = {path.name for path in (small_disk / "run" / "unfinished" / "checkpoints").glob("checkpoint-*.json")}
    full = start(small_disk, *words)
    errors = full.communicate(timeout=120)[1]
    assert full.returncode == 2, errors
    assert "there is no room to write" in errors
    assert "Traceback" not in errors
    assert {
        path.name for path in (small_disk / "run" / "unfinished" / "checkpoints").glob("checkpoint-*.json")
    } >= saved
    ballast.unlink()
    resumed = start(small_disk, *words)
    output, errors = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, errors
    assert "resuming task" in output
    assert "is damaged" not in output


# where nothing can be mounted, a limit on the size of files is as real to the process that writes: the system refuses
# the write in the middle of it
FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from etag.cli import main
from etag.learner import checkpoints, tensors
write, count = tensors.write_atomically, [0]
def limited(path, content):
    count[0] += 1
    if count[0] == 9:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    write(path, content)
checkpoints.write_atomically = tensors.write_atomically = limited
sys.argv = ["etag", *sys.argv[1:]]
main()
"""


@pytest.mark.slow
def test_a_full_disk_is_reported_and_what_was_saved_before_is_complete(tmp_path):
    words = [*SLOW[:-1], "cut", "--set", "runtime.checkpoint_seconds=0", "--set", "train.epochs=30"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", FULL, *words]
    full = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert full.returncode == 2, full.stderr
    assert "there is no room to write" in full.stderr
    assert "the same command resumes" in full.stderr
    assert "Traceback" not in full.stderr
    assert not list((tmp_path / "cut").rglob("*.part"))
    resumed = start(tmp_path, *words)
    output = resumed.communicate(timeout=300)[0]
    assert resumed.returncode == 0
    assert "resuming task 1 at step" in output


def test_a_write_beyond_the_limit_leaves_the_old_content(tmp_path):
    script = (
        "import resource, signal, sys; from pathlib import Path; from etag.core.files import write_atomically;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000));"
        "write_atomically(Path(sys.argv[1]), b'x' * 5000)"
    )
    write_atomically(tmp_path / "file", "old")
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "file")], capture_output=True, text=True)
    assert "there is no room to write" in done.stderr
    assert (tmp_path / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_too_little_memory_is_reported_with_the_batch_size_to_try(lab, monkeypatch):
    short = lab("fine", batch_size=12)
    short.begin(0)
    (phase,) = short.works(0).values()

    def hungry(_):
        return torch.empty(2**60, dtype=torch.uint8)

    monkeypatch.setattr(phase.module, "forward", hungry)
    with pytest.raises(
        EtagError, match="not enough memory for phase 'solver' with a batch size of 12: set batch_size to 6"
    ):
        short.engine.train(phase)


def test_a_loss_that_is_not_finite_is_reported_with_the_last_good_checkpoint(small, tmp_path):
    config = small(
        "fine", **{"train.lr": 1e30, "train.schedule": "constant", "train.optimizer": "sgd", "train.epochs": 9}
    )
    with pytest.raises(
        EtagError, match=r"task 2: .*'ce' became .* at step .* of phase 'solver'.*checkpoint was saved at the beginning"
    ):
        run(config, tmp_path / "run")


def test_weights_that_are_not_finite_are_not_saved(small, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "LOG_EVERY", 1)
    config = small("fine", **{"runtime.checkpoint_seconds": 0, "train.epochs": 9})
    step = training.Training._step

    def spoil(self, turn, number, batch):
        terms = step(self, turn, number, batch)
        if number == 5:
            with torch.no_grad():
                turn.group.parameters[0].fill_(torch.nan)
        return terms

    monkeypatch.setattr(training.Training, "_step", spoil)
    with pytest.raises(
        EtagError, match=r"task 1: .* contains NaN or infinity.*checkpoint was saved at step 5 of phase 'solver'"
    ):
        run(config, tmp_path / "run")
    monkeypatch.setattr(training.Training, "_step", step)
    run(config, tmp_path / "run")
