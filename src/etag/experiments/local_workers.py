"""Runs as processes of this machine, one thread each; on a machine with GPUs, in turn on each of these."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import torch

from etag.core.files import write_atomically
from etag.experiments import yaml
from etag.experiments.grid import PlannedRun

STOPPING = 60.0  # seconds that a run has to reach its next checkpoint


class LocalJob:
    """A process that makes a run; what it says goes to a file beside."""

    def __init__(self, run: PlannedRun, out: Path, device: int | None) -> None:
        out.parent.mkdir(parents=True, exist_ok=True)
        recipe, self._log = out.with_name(f"{out.name}.yaml"), out.with_name(f"{out.name}.log")
        write_atomically(recipe, yaml.write(run.config.plain()))
        env = (
            os.environ | {"OMP_NUM_THREADS": "1"} | ({} if device is None else {"CUDA_VISIBLE_DEVICES": str(device)})
        )
        command = [sys.executable, "-m", "etag.cli", "run", str(recipe), "--out", str(out)]
        command += [word for file in run.config.plugins for word in ("--plugin", file)]
        with self._log.open("w") as log:
            # in a session of its own: Ctrl-C is passed on by `stop`, once
            self._process = subprocess.Popen(
                command,
                env=env,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def ended(self) -> str | None:
        """Whether it has, and why it failed: its last words."""
        code = self._process.poll()
        if code is None or code == 0:
            return None if code is None else ""
        words = [line for line in self._log.read_text().splitlines() if line.strip()]
        return words[-1].removeprefix("error: ") if words else f"it ended with code {code}"

    def stop(self) -> None:
        """As Ctrl-C would; if that takes too long, at once: the last checkpoint is there."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(STOPPING)
            except subprocess.TimeoutExpired:
                self._process.kill()


class LocalWorkers:
    """So many runs at a time."""

    def __init__(self, jobs: int) -> None:
        self.places = jobs
        self._started = 0

    def start(self, run: PlannedRun, out: Path) -> LocalJob:
        """A process."""
        devices = torch.cuda.device_count()
        self._started += 1
        return LocalJob(run, out, self._started % devices if devices else None)
