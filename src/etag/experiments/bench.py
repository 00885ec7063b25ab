"""Executing a grid: finished runs are skipped, interrupted ones resumed, a failed one does not stop the others."""

import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from etag.core.errors import EtagError
from etag.core.files import locked, user_cache, write_atomically
from etag.core.options import PRECISIONS
from etag.engine.runtime import resolve_precision
from etag.experiments import yaml_files
from etag.experiments.estimate import Estimate, estimate
from etag.experiments.grid import ADAPTED, FAILED, Grid, PlannedRun
from etag.experiments.run_directory import RunDirectory
from etag.learner.pretrained import STORE

State = Literal["waiting", "running", "done", "failed"]
POLL_SECONDS = 0.5


class Job(Protocol):
    """A run that is being executed somewhere."""

    def ended(self) -> str | None:
        """None while it runs; then an empty text, or the reason why it failed."""

    def stop(self) -> None:
        """Stop it at its next checkpoint, and wait for that."""


class Workers(Protocol):
    """Where runs are executed."""

    @property
    def slots(self) -> int:
        """The number of runs at a time."""

    def check(self, runs: Sequence[PlannedRun]) -> None:
        """Raise an error, before anything is started, if runs cannot be executed there."""

    def start(self, run: PlannedRun, out: Path) -> Job:
        """Start a run in a directory, or resume it there."""


@dataclass
class RunStatus:
    """The state of a run of the grid."""

    run: PlannedRun
    state: State = "waiting"
    reason: str = ""  # why it failed
    accuracy: float | None = None
    seconds: float | None = None  # wall time of the whole run
    tasks: int = 0  # finished so far
    started: float | None = None  # time.monotonic() of its start by this process

    @property
    def elapsed(self) -> float:
        """Seconds since this process started it; 0 if it did not."""
        return 0.0 if self.started is None else time.monotonic() - self.started


Display = Callable[[Sequence[RunStatus], float | None], None]  # prints the progress of runs, and the seconds left


def by_label(runs: Iterable[RunStatus]) -> dict[str, list[RunStatus]]:
    """Groups of runs that differ only in the seed."""
    groups: dict[str, list[RunStatus]] = {}
    for status in runs:
        groups.setdefault(status.run.label, []).append(status)
    return groups


@dataclass
class Bench:
    """A grid and its two folders: the store, which holds whole run directories, and the results of finished runs."""

    grid: Grid
    store: Path
    results: Path
    restart: bool = False  # replace runs of another configuration
    runs: dict[str, RunStatus] = field(default_factory=dict)  # by name: the runs known so far
    planned: list[PlannedRun] = field(default_factory=list)  # all runs, also those that wait for a search
    precision: str = "auto"  # of all runs that do not set one themselves

    def execute(self, workers: Workers, display: Display) -> list[RunStatus]:
        """Execute all runs that are not done; returns the status of every run, also of those that failed."""
        self._pin()
        with locked(self.store / ".lock", f"another `etag bench` works in '{self.store}': wait for it."):
            self._write_grid()
            jobs: dict[str, Job] = {}
            before = os.environ.get(STORE)
            os.environ[STORE] = str(self.store.absolute())  # where `model.weights=run:NAME` is
            try:
                self._plan()
                workers.check([status.run for status in self._in_state("waiting")])
                while jobs or self._in_state("waiting"):
                    while len(jobs) < workers.slots and (status := self._next()):
                        jobs[status.run.name] = workers.start(status.run, self.store / status.run.name)
                        status.state, status.started = "running", time.monotonic()
                    if self._poll(jobs):
                        self._plan()
                    display(list(self.runs.values()), self.seconds_left(workers.slots))
                    time.sleep(POLL_SECONDS)
            finally:
                for job in jobs.values():
                    job.stop()
                os.environ.pop(STORE)
                if before is not None:
                    os.environ[STORE] = before
            display(list(self.runs.values()), None)
        return list(self.runs.values())

    def estimates(self) -> Iterator[tuple[str, int, float, float]]:
        """For each label: the number of runs (seeds), and the seconds and arithmetic operations of one of them. A few
        steps are measured once for each method and its options, and scaled to the images of every split."""
        self._pin()
        measured: dict[str, Estimate] = {}
        for label, runs in by_label(map(RunStatus, map(self._pinned, self.planned))).items():
            config = runs[0].run.config
            values = config.to_json()
            cost_key = json.dumps([values[key] for key in ("method", "model", "train", "runtime")])
            expected = estimate(config, measured.get(cost_key))
            measured.setdefault(cost_key, expected)
            yield label, len(runs), sum(expected.seconds), expected.operations

    @property
    def command(self) -> str:
        """The command that executes this grid again, from the same working directory."""
        words = ["etag", "bench", self.grid.name if self.grid.packaged else (self.results / "grid.yaml").as_posix()]
        if self.results != default_results(self.grid):
            words += ["--results", self.results.as_posix()]
        return shlex.join([*words, *(word for file in self.grid.plugins for word in ("--plugin", file))])

    def _write_grid(self) -> None:
        """Write the grid's file beside its results."""
        try:
            self.results.mkdir(parents=True, exist_ok=True)
            write_atomically(self.results / "grid.yaml", self.grid.recorded(self.command, self.planned, self.precision))
        except OSError as error:
            raise EtagError(f"{error.filename} cannot be written: {error.strerror}.") from error

    def _pin(self) -> None:
        """Find all runs, and the precision that they have in common."""
        self.planned = self.grid.all_runs()
        self.precision = self._pinned_precision()

    def _pinned_precision(self) -> str:
        """As the grid began, on whatever machine that was (in float32, if its file does not say it: it is old); a new
        grid takes the one of this machine."""
        try:
            added = yaml_files.read(self.results / "grid.yaml").get("bench")
        except EtagError:  # there is none, or it is written anew
            added = None
        recorded = added.get("precision", "32-true") if isinstance(added, dict) else None
        runtime = self.planned[0].config.runtime.model_copy(update={"precision": "auto"})
        return resolve_precision(runtime, recorded if recorded in PRECISIONS else None).precision

    def _pinned(self, run: PlannedRun) -> PlannedRun:
        if run.config.runtime.precision != "auto":
            return run
        runtime = resolve_precision(run.config.runtime, self.precision)
        command = f"{run.command} --set runtime.precision={runtime.precision}"
        return replace(run, config=run.config.model_copy(update={"runtime": runtime}), command=command)

    def _plan(self) -> None:
        """Add all runs that can be configured now: the results of a search may allow new ones."""
        while new := [run for run in self.grid.plan(self._score) if run.name not in self.runs]:
            for run in map(self._pinned, new):
                self.runs[run.name] = status = self.status(run)
                if status.state == "failed" and self.restart:
                    for folder in (self.results, self.store):
                        shutil.rmtree(folder / run.name, ignore_errors=True)
                    self.runs[run.name] = status = RunStatus(run)
                if status.state == "done":
                    self._copy(run)
        # in the order of the grid's file, also those that could be configured only now
        places = {run.name: place for place, run in enumerate(self.planned)}
        self.runs = dict(sorted(self.runs.items(), key=lambda item: places.get(item[0], len(places))))

    def _score(self, name: str) -> float | None:
        status = self.runs.get(name)
        if status is not None and status.state == "failed":
            return FAILED  # a search never chooses values that a run fails with
        return None if status is None else status.accuracy

    def status(self, run: PlannedRun) -> RunStatus:
        """What is on disk of a run; one of another configuration counts as failed. Of a run that adapts a backbone the
        results are not enough: other runs need its model."""
        for folder in (self.store,) if run.name.startswith(ADAPTED) else (self.results, self.store):
            directory = RunDirectory(folder / run.name)
            try:
                if directory.finished(run.config):
                    if run.name.startswith(ADAPTED) and not directory.model.exists():
                        raise EtagError(f"'{directory.path}' has no model any more: delete it, and it is run again.")
                    return _done(run, directory)
                directory.check(run.config)
            except EtagError as error:
                return RunStatus(run, "failed", str(error))
        return RunStatus(run)

    def _next(self) -> RunStatus | None:
        """The next run to start: the first waiting one whose weights no running one has, else the first. Runs with the
        same frozen weights would wait for each other's features."""
        used = {status.run.config.model.weights for status in self._in_state("running")} - {None}
        waiting = self._in_state("waiting")
        return min(waiting, key=lambda status: status.run.config.model.weights in used, default=None)

    def _in_state(self, *states: State) -> list[RunStatus]:
        return [status for status in self.runs.values() if status.state in states]

    def _poll(self, jobs: dict[str, Job]) -> bool:
        """Update the status of the running runs; returns whether one has ended."""
        before = len(jobs)
        for name, job in list(jobs.items()):
            status, directory = self.runs[name], RunDirectory(self.store / name)
            with suppress(EtagError):  # no task is learned yet
                status.tasks = len(directory.model.about().history)
            ended = job.ended()
            if ended is None:
                continue
            del jobs[name]
            if ended:
                status.state, status.reason = "failed", ended
            else:
                self.runs[name] = _done(status.run, directory, status.elapsed)
                self._copy(status.run)
        return len(jobs) < before

    def _copy(self, run: PlannedRun) -> None:
        """Copy the small files of a finished run to the results; `metrics.json` last: it marks a run as done. Those of
        a run that adapts a backbone may be of an earlier store, whose backbone nobody has any more: they are replaced.
        """
        source, target = RunDirectory(self.store / run.name), RunDirectory(self.results / run.name)
        if target.metrics.is_file() and not run.name.startswith(ADAPTED):
            return
        target.path.mkdir(parents=True, exist_ok=True)
        write_atomically(target.path / "command.txt", run.command + "\n")
        if run.config.evaluation.features == "every":
            shutil.copytree(source.features, target.features, dirs_exist_ok=True)
        for file in (source.config, source.metrics):
            write_atomically(target.path / file.name, file.read_bytes())

    def seconds_left(self, slots: int) -> float | None:
        """The time left, from the time of finished runs with the same label or of all; None before one is done."""
        done = self._in_state("done")
        if not done:
            return None
        same, left = by_label(done), [0.0]
        later = [RunStatus(run) for run in self.planned if run.name not in self.runs]  # after a search
        for status in [*self._in_state("waiting", "running"), *later]:
            known = same.get(status.run.label, done)
            expected = sum(other.seconds or 0.0 for other in known) / len(known)
            left.append(max(0.0, expected - status.elapsed))
        return max(sum(left) / slots, *left)  # never less than the longest remaining run


def _done(run: PlannedRun, directory: RunDirectory, elapsed: float = 0.0) -> RunStatus:
    """Seconds of a finished run: since its start, or those of its metrics if they are more."""
    try:
        metrics = json.loads(directory.metrics.read_text())
        train, test, accuracy = metrics["train_seconds"], metrics["test_seconds"], float(metrics["A_weighted"])
        # metrics include the time before a resume, the elapsed time includes start-up: take the larger
        seconds = max(elapsed, float(sum(train) + sum(test)))
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise EtagError(f"{directory.metrics} is damaged: delete '{directory.path}', and repeat the run.") from error
    return RunStatus(run, "done", accuracy=accuracy, seconds=seconds, tasks=len(train))


def default_store(grid: Grid) -> Path:
    """The grid's folder below $ETAG_RUNS, else below the user's cache."""
    return Path(os.environ.get("ETAG_RUNS") or user_cache() / "runs").expanduser() / grid.name


def default_results(grid: Grid) -> Path:
    """The grid's folder below `results` in the working directory."""
    return Path("results") / grid.name
