"""`etag bench`: the runs of a grid by one command, with a table of their progress."""

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from etag.cli.options import Plugins
from etag.cli.printing import echo

if TYPE_CHECKING:
    from rich.table import Table

    from etag.experiments.bench import Bench, Display, RunStatus, Workers

app = typer.Typer()


@app.command()
def bench(
    grid: Annotated[str, typer.Argument(help="Name or file of a grid (see `etag recipes --grids`).")],
    store: Annotated[Path | None, typer.Option(help="Folder of runs; else $ETAG_RUNS/GRID or the user cache.")] = None,
    results: Annotated[Path | None, typer.Option(help="Folder for finished results (default: results/GRID).")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time, one thread each.", min=1)] = 1,
    on: Annotated[Literal["local", "ray"], typer.Option(help="Where runs execute: this machine, or Ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Address of a Ray cluster (default: start one here).")] = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="Only estimate how long it would take.")] = False,
    tflops: Annotated[float, typer.Option(help="Sustained speed of a GPU; 6 is about a V100.", min=0.01)] = 6.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the runs and their states.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Replace runs that have another configuration.")] = False,
    plugin: Plugins = None,
) -> None:
    """Execute all runs of a grid.

    Finished runs are skipped, interrupted runs are resumed, and a failed run does not stop the others.
    """
    from etag.experiments.bench import Bench, default_results, default_store
    from etag.experiments.grid import Grid

    loaded = Grid.load(grid, plugin or [])
    execution = Bench(loaded, store or default_store(loaded), results or default_results(loaded), restart)
    if estimate:
        _print_estimate(execution, tflops)
        return
    if dry_run:
        for run in loaded.plan(lambda _: None):  # runs that need the result of a search are not listed
            status = execution.status(run)
            echo(f"{status.state:8} {run.name}  {status.reason}".rstrip())
        return
    for number in (signal.SIGINT, signal.SIGTERM):  # some shells ignore these signals for background jobs
        signal.signal(number, signal.default_int_handler)
    try:
        with _workers(on, address, jobs, execution.store) as workers, _display() as display:
            runs = execution.execute(workers, display)
    except KeyboardInterrupt:
        echo("interrupted: the same command resumes from here.", err=True)
        raise typer.Exit(130) from None
    failed = [status for status in runs if status.state == "failed"]
    for status in failed:
        echo(f"{status.run.name} failed: {status.reason}", err=True)
    echo(f"{len(runs) - len(failed)} of {len(runs)} runs are done: {execution.results}")
    if failed:
        raise typer.Exit(1)


def _print_estimate(execution: "Bench", tflops: float) -> None:
    """Print the hours of each group of runs that differ only in the seed, on this device and on a GPU of this speed."""
    total = [0.0, 0.0]
    for label, runs, seconds, operations in execution.estimates():
        hours, gpu_hours = runs * seconds / 3600, runs * operations / (3600e12 * tflops)
        echo(f"{label}: {runs} runs, {hours:.2f} h on this device, {gpu_hours:.2f} GPU-hours")
        total = [total[0] + hours, total[1] + gpu_hours]
    echo(f"in all {total[0]:.1f} h on this device, {total[1]:.1f} GPU-hours at {tflops:g} TFLOP/s sustained")


@contextmanager
def _workers(on: str, address: str | None, jobs: int, store: Path) -> "Iterator[Workers]":
    if on == "local":
        from etag.experiments.local_workers import LocalWorkers

        yield LocalWorkers(jobs, store)
        return
    from etag.experiments.ray_workers import RayWorkers

    workers = RayWorkers(address, jobs)
    try:
        yield workers
    finally:
        workers.close()


@contextmanager
def _display() -> "Iterator[Display]":
    """A table that is redrawn, on a terminal; elsewhere one line per run that has ended."""
    if not sys.stdout.isatty():
        yield partial(_print_ended, set())
        return
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        yield lambda runs, seconds_left: live.update(_table(runs, seconds_left), refresh=True)


def _print_ended(ended: set[str], runs: "Sequence[RunStatus]", seconds_left: float | None) -> None:
    """Print a line for each run that has ended and is not in `ended`, and add it there."""
    for status in runs:
        if status.state in ("done", "failed") and status.run.name not in ended:
            ended.add(status.run.name)
            outcome = f"failed: {status.reason}"
            if status.accuracy is not None:
                outcome = f"average accuracy {status.accuracy:.2%}"
            echo(f"{status.run.name}: {outcome} ({len(ended)} of {len(runs)}{_left(seconds_left)})")


def _table(runs: "Sequence[RunStatus]", seconds_left: float | None) -> "Table":
    """One row for runs that differ only in the seed."""
    from rich.table import Table
    from rich.text import Text

    from etag.core.text import printable
    from etag.experiments.bench import by_label

    states = ("done", "running", "waiting", "failed")
    counts = {state: sum(status.state == state for status in runs) for state in states}
    title = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    columns, title = ("run", "done", "average accuracy", "now"), title + _left(seconds_left)
    table = Table(*columns, box=None, header_style="bold", title=title, title_justify="left")
    groups, means = by_label(runs), {}
    best: dict[str, float] = {}  # of each split
    for label, group in groups.items():
        known, split = [run.accuracy for run in group if run.accuracy is not None], label.rpartition("/")[0]
        means[label] = sum(known) / len(known) if known else 0.0
        best[split] = max(means[label], best.get(split, 0.0))
    for label, group in groups.items():
        mean, done = means[label], sum(status.state == "done" for status in group)
        style = "bold" if mean > 0 and mean == best[label.rpartition("/")[0]] else ""
        cells = [label, f"{done}/{len(group)}", f"{mean:.2%}" if done else "", _now(group)]
        table.add_row(*(Text(printable(cell)) for cell in cells), style=style)
    return table


def _now(group: "Sequence[RunStatus]") -> str:
    """The progress of the running seeds, and why others failed."""
    running = [f"seed {run.run.config.seed}: {run.tasks} tasks done" for run in group if run.state == "running"]
    return "; ".join([*running, *(f"failed: {run.reason}" for run in group if run.state == "failed")])


def _left(seconds: float | None) -> str:
    from etag.core.text import duration

    return f"; about {duration(seconds)} left" if seconds else ""
