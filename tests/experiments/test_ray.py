"""A grid on a local Ray cluster of two workers, one of which is killed during its run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.experiments.test_grid import TINY, grid_file

pytest.importorskip("ray")


def workers():
    """Process numbers of the Ray workers that execute a run now."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes().startswith(b"ray::_execute_run"):
                    found.append(int(entry.name))
            except OSError:  # it has ended since
                continue
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads processes in /proc")
def test_a_run_whose_worker_is_killed_is_finished_by_another(tmp_path):
    settings = TINY | {"train.epochs": 12, "runtime.checkpoint_steps": 10}
    file = grid_file(tmp_path, methods=["gfr"], seeds=[0, 1], settings=settings)
    words = ["bench", file, "--store", "store", "--results", "results", "--on", "ray", "--jobs", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "etag.cli", *words],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started = tmp_path / "store" / "b2-1x2" / "gfr-seed0"
    while not list(started.glob("unfinished/checkpoints/*")) and process.poll() is None:
        time.sleep(0.05)
    killed = workers()
    assert killed, process.communicate()
    os.kill(killed[0], signal.SIGKILL)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert "2 of 2 runs are done" in output
    for seed in (0, 1):
        metrics = json.loads((tmp_path / "results" / "b2-1x2" / f"gfr-seed{seed}" / "metrics.json").read_text())
        assert metrics["seed"] == seed
