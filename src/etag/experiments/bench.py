"""Doing a grid's runs: what is done is skipped, what was cut goes on, what fails does not stop the others."""

import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from etag.core.errors import EtagError
from etag.core.files import locked, user_cache, write_atomically
from etag.experiments.grid import Grid, PlannedRun, by_label
from etag.experiments.run_directory import RunDirectory

State = Literal["waiting", "running", "done", "failed"]
LOOK_EVERY = 0.5  # seconds


class Job(Protocol):
    """A run that is being made somewhere."""

    def ended(self) -> str | None:
        """None while it goes on; then an empty text, or why it failed."""

    def stop(self) -> None:
        """Let it stop at its next checkpoint, and wait for that."""


class Workers(Protocol):
    """Where runs are made."""

    @property
    def places(self) -> int:
        """How many at a time."""

    def start(self, run: PlannedRun, out: Path) -> Job:
        """Begin a run, or go on with it, in a directory."""


@dataclass
class Row:
    """What is known of a run."""

    run: PlannedRun
    state: State = "waiting"
    reason: str = ""  # of a failure
    accuracy: float | None = None
    seconds: float | None = None  # that training took
    tasks: int = 0  # learned so far

    @property
    def label(self) -> str:
        """Its run's."""
        return self.run.label


class Board(Protocol):
    """Where the state of a grid is shown."""

    def show(self, rows: Sequence[Row], seconds_left: float | None) -> None:
        """After anything has changed."""


@dataclass
class Bench:
    """A grid with its two places: the store, where runs live, and the results, which hold what is finished."""

    grid: Grid
    store: Path
    results: Path
    restart: bool = False  # replace what was made with another configuration
    rows: dict[str, Row] = field(default_factory=dict)  # by name

    def run(self, workers: Workers, board: Board) -> list[Row]:
        """Make all runs that are not done; those that failed can be seen in their rows."""
        with self._alone():
            jobs: dict[str, Job] = {}
            try:
                self._plan()
                while jobs or self._of("waiting"):
                    for row in self._of("waiting")[: workers.places - len(jobs)]:
                        jobs[row.run.name] = workers.start(row.run, self.store / row.run.name)
                        row.state = "running"
                    if self._look(jobs):
                        self._plan()
                    board.show(list(self.rows.values()), self.seconds_left(workers.places))
                    time.sleep(LOOK_EVERY)
            finally:
                for job in jobs.values():
                    job.stop()
            board.show(list(self.rows.values()), None)
        return list(self.rows.values())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else makes the same grid in the same place. The grid's file is kept beside its results."""
        try:
            self.store.mkdir(parents=True, exist_ok=True)
            self.results.mkdir(parents=True, exist_ok=True)
            (self.store / ".lock").touch()
            write_atomically(self.results / "grid.yaml", self.grid.text)
        except OSError as error:
            raise EtagError(f"{error.filename} cannot be written: {error.strerror}.") from error
        with locked(self.store / ".lock", f"another `etag bench` works in '{self.store}': wait for it."):
            yield

    def _plan(self) -> None:
        """Name all runs that can be named now: what is found of those that try may name those that follow."""
        while new := [run for run in self.grid.plan(self._score) if run.name not in self.rows]:
            for run in new:
                self.rows[run.name] = row = self.look(run)
                if row.state == "failed" and self.restart:
                    self._remove(run)
                    self.rows[run.name] = row = Row(run)
                if row.state == "done":
                    self._copy(run)

    def _score(self, name: str) -> float | None:
        row = self.rows.get(name)
        if row is not None and row.state == "failed":
            return float("-inf")  # values that a run fails with are not chosen
        return None if row is None else row.accuracy

    def look(self, run: PlannedRun) -> Row:
        """What there is of a run already; what was made with another configuration is no use."""
        for place in (self.results, self.store):
            directory = RunDirectory(place / run.name)
            try:
                if directory.finished(run.config):
                    return _done(run, directory)
                directory.check(run.config)
            except EtagError as error:
                return Row(run, "failed", str(error))
        return Row(run)

    def _remove(self, run: PlannedRun) -> None:
        """What there is of a run."""
        for place in (self.results, self.store):
            shutil.rmtree(place / run.name, ignore_errors=True)

    def _of(self, state: State) -> list[Row]:
        return [row for row in self.rows.values() if row.state == state]

    def _look(self, jobs: dict[str, Job]) -> bool:
        """Note what has happened since; whether a run has ended."""
        before = len(jobs)
        for name, job in list(jobs.items()):
            row, directory = self.rows[name], RunDirectory(self.store / name)
            with suppress(EtagError):  # no task is learned yet
                row.tasks = len(directory.model.about().history)
            ended = job.ended()
            if ended is None:
                continue
            del jobs[name]
            if ended:
                row.state, row.reason = "failed", ended
            else:
                self.rows[name] = _done(row.run, directory)
                self._copy(row.run)
        return len(jobs) < before

    def _copy(self, run: PlannedRun) -> None:
        """To the results, what is small of a finished run; `metrics.json` last: it marks what is done."""
        source, target = RunDirectory(self.store / run.name), RunDirectory(self.results / run.name)
        if target.metrics.is_file():
            return
        target.path.mkdir(parents=True, exist_ok=True)
        write_atomically(target.path / "command.txt", run.command + "\n")
        for file in [source.config, *sorted(source.path.glob("embedding-*.json")), source.metrics]:
            write_atomically(target.path / file.name, file.read_bytes())

    def seconds_left(self, places: int) -> float | None:
        """From what runs of the same kind took, or of any kind; None before one is done."""
        done = self._of("done")
        if not done:
            return None
        alike, left = by_label(done), 0.0
        for row in [*self._of("waiting"), *self._of("running")]:
            known = alike.get(row.label, done)
            left += sum(other.seconds or 0.0 for other in known) / len(known)
        return left / places


def _done(run: PlannedRun, directory: RunDirectory) -> Row:
    metrics = json.loads(directory.metrics.read_text())
    seconds = metrics["train_seconds"]
    return Row(run, "done", accuracy=metrics["A_weighted"], seconds=sum(seconds), tasks=len(seconds))


def default_store(grid: Grid) -> Path:
    """ETAG_RUNS, else the user cache."""
    return Path(os.environ.get("ETAG_RUNS") or user_cache() / "runs").expanduser() / grid.name
