"""Runs as processes on this machine, one thread each; GPUs are distributed among the runs."""

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen, TimeoutExpired

import torch

from etag.core.files import write_atomically
from etag.data.source import SOURCES
from etag.experiments import yaml_files
from etag.experiments.grid import PlannedRun

STOP_SECONDS = 60.0  # for a run to reach its next checkpoint and stop
WATCHED = "ETAG_STOP_WITH_PARENT"  # set for a run whose standard input is a pipe from the process that started it


def visible_devices() -> list[str]:
    """The GPUs that this process may use, by the numbers or UUIDs that CUDA_VISIBLE_DEVICES takes."""
    inherited, count = os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count()
    names = map(str, range(count)) if inherited is None else map(str.strip, inherited.split(","))
    return [*names][:count]  # CUDA ignores what follows an unknown name


class LocalJob:
    """A process that executes a run; its output goes to a file beside the run directory."""

    def __init__(self, run: PlannedRun, out: Path, devices: Sequence[str], shared: Path | None = None) -> None:
        self.devices = devices
        out.parent.mkdir(parents=True, exist_ok=True)
        recipe, self._log = out.with_name(f"{out.name}.yaml"), out.with_name(f"{out.name}.log")
        write_atomically(recipe, yaml_files.write(run.config.to_json()))
        env = os.environ | {"OMP_NUM_THREADS": "1", WATCHED: "1"}
        env |= {"PYTHONSAFEPATH": "1"}  # else `python -m` would import modules from the working directory
        env |= {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {}
        for name in ("features", "phases") if shared else ():
            env.setdefault(f"ETAG_{name.upper()}", str(Path(shared or "", name).absolute()))
        # a page per run would take seconds of each; `etag report RUN` writes it when somebody wants to see it
        command = [sys.executable, "-m", "etag.cli", "run", str(recipe), "--out", str(out), "--no-report"]
        command += [word for file in run.config.plugins for word in ("--plugin", file)]
        with self._log.open("w") as log:
            # in a session of its own: `stop` passes Ctrl-C on, once; the pipe ends with this process: see `WATCHED`
            self._process = Popen(command, env=env, stdout=log, stderr=STDOUT, stdin=PIPE, start_new_session=True)

    @property
    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    def ended(self) -> str | None:
        """None while it runs; then an empty text, or the last line of its output if it failed."""
        code = self._process.poll()
        if not code:
            return None if code is None else ""
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1].removeprefix("error: ") if lines else f"it ended with exit code {code}"

    def stop(self) -> None:
        """Interrupt it as Ctrl-C does; kill it if that takes too long: its last checkpoint is on disk."""
        if self.running:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(STOP_SECONDS)
            except TimeoutExpired:
                self._process.kill()


def stop_with_parent() -> None:
    """In a run that `LocalJob` started: when the process that started it ends, even if it is killed, stop at the next
    checkpoint, or at once if that takes too long. Elsewhere this does nothing."""
    if WATCHED in os.environ:
        threading.Thread(target=_wait_for_end_of_parent, daemon=True).start()


def _wait_for_end_of_parent() -> None:
    with suppress(OSError):
        while os.read(0, 1):  # nobody writes: it returns nothing as soon as the other end of the pipe is closed
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os._exit(1)


class LocalWorkers:
    """Executes up to `slots` runs at a time on this machine. In a folder, if one is given, they share the features of a
    frozen backbone, and what they would all train alike."""

    def __init__(self, slots: int, shared: Path | None = None) -> None:
        self.slots, self._shared = slots, shared
        self._devices = visible_devices()
        self._jobs: list[LocalJob] = []

    def check(self, runs: Sequence[PlannedRun]) -> None:
        """Raise an error if the data of a run is not on this machine."""
        for run in runs:
            SOURCES[run.config.data.name].located(run.config.data)

    def start(self, run: PlannedRun, out: Path) -> LocalJob:
        """Start a process for the run, on the GPUs that the fewest other runs use."""
        self._jobs = [job for job in self._jobs if job.running]
        used = Counter(device for job in self._jobs for device in job.devices)
        free_first = sorted(self._devices, key=lambda device: used[device])
        runtime = run.config.runtime
        devices = free_first[: runtime.devices] if runtime.accelerator in ("auto", "cuda") else []
        job = LocalJob(run, out, devices, self._shared)
        self._jobs.append(job)
        return job
