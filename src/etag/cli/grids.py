"""`etag bench`: many runs by one command, with a table that follows them."""

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from etag.experiments.bench import Row, Workers
    from etag.experiments.grid import Grid

app = typer.Typer()


@app.command()
def bench(
    grid: Annotated[str, typer.Argument(help="Name or file of a grid (see `etag recipes --grids`).")],
    store: Annotated[Path | None, typer.Option(help="Where runs live; $ETAG_RUNS/GRID, else the user cache.")] = None,
    results: Annotated[Path | None, typer.Option(help="Where what is finished is kept; results/GRID.")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time, one thread each.", min=1)] = 1,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="ray: on a cluster, or on one that is begun here.")
    ] = "local",
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster; none begins one on this machine.")] = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="Only say how long it would take.")] = False,
    tflops: Annotated[
        float, typer.Option(help="What a GPU sustains, for --estimate; 6 is about a V100 in float32.", min=0.01)
    ] = 6.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the runs and what is done.")] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Replace runs that were made with another configuration.")
    ] = False,
    plugin: Annotated[list[str] | None, typer.Option("--plugin", metavar="FILE", help="As for `etag run`.")] = None,
) -> None:
    """Make all runs of a grid: what is done is skipped, what was cut goes on, what fails does not stop the others."""
    from etag.experiments import plugins
    from etag.experiments.bench import Bench, default_store
    from etag.experiments.grid import Grid

    plan = Grid.load(grid, plugins.load(plugin or []))
    if estimate:
        _print_estimate(plan, tflops)
        return
    made = Bench(plan, store or default_store(plan), results or Path("results") / plan.name, restart)
    if dry_run:
        for run in plan.plan(lambda _: None):
            row = made.look(run)
            typer.echo(f"{row.state:8} {run.name}  {row.reason}".rstrip())
        return
    for number in (signal.SIGINT, signal.SIGTERM):  # as for `etag run`, also where a shell had it ignored
        signal.signal(number, signal.default_int_handler)
    try:
        with _workers(engine, address, jobs) as workers, _board() as board:
            rows = made.run(workers, board)
    except KeyboardInterrupt:
        typer.echo("interrupted: the same command goes on from here.", err=True)
        raise typer.Exit(130) from None
    failed = [row for row in rows if row.state == "failed"]
    for row in failed:
        typer.echo(f"{row.run.name} failed: {row.reason}", err=True)
    typer.echo(f"{len(rows) - len(failed)} of {len(rows)} runs are done: {made.results}")
    if failed:
        raise typer.Exit(1)


def _print_estimate(plan: "Grid", tflops: float) -> None:
    """From a few measured steps of each method: hours on this device, and on a GPU by the count of operations."""
    from etag.experiments.estimating import estimates

    total = [0.0, 0.0]
    for label, runs, seconds, operations in estimates(plan):
        hours, gpu_hours = runs * seconds / 3600, runs * operations / (3600e12 * tflops)
        typer.echo(f"{label}: {runs} runs, {hours:.2f} h on this device, {gpu_hours:.2f} GPU-hours")
        total = [total[0] + hours, total[1] + gpu_hours]
    typer.echo(f"in all {total[0]:.1f} h on this device, {total[1]:.1f} GPU-hours at {tflops:g} TFLOP/s sustained")


@contextmanager
def _workers(engine: str, address: str | None, jobs: int) -> "Iterator[Workers]":
    if engine == "local":
        from etag.experiments.local_workers import LocalWorkers

        yield LocalWorkers(jobs)
        return
    from etag.experiments.ray_workers import RayWorkers

    workers = RayWorkers(address, jobs)
    try:
        yield workers
    finally:
        workers.close()


@contextmanager
def _board() -> "Iterator[_LiveBoard | _LineBoard]":
    """A table that changes, on a terminal; else a line for each run that ends."""
    if not sys.stdout.isatty():
        yield _LineBoard()
        return
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        yield _LiveBoard(live)


class _LineBoard:
    """Says each thing once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def show(self, rows: "Sequence[Row]", seconds_left: float | None) -> None:
        """A line for each run that has ended since."""
        ended = [row for row in rows if row.state in ("done", "failed")]
        for row in ended:
            if row.run.name not in self._said:
                self._said.add(row.run.name)
                what = f"A {row.accuracy:.2%}" if row.accuracy is not None else f"failed: {row.reason}"
                typer.echo(f"{row.run.name}: {what} ({len(self._said)} of {len(rows)}{_left(seconds_left)})")


class _LiveBoard:
    """One row for runs that differ in the seed only."""

    def __init__(self, live: "Live") -> None:
        self._live = live

    def show(self, rows: "Sequence[Row]", seconds_left: float | None) -> None:
        """Draw it again."""
        self._live.update(_table(rows, seconds_left), refresh=True)


def _table(rows: "Sequence[Row]", seconds_left: float | None) -> "Table":
    from rich.table import Table

    from etag.experiments.grid import by_label

    counts = {state: sum(row.state == state for row in rows) for state in ("done", "running", "waiting", "failed")}
    title = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    table = Table(box=None, header_style="bold", title=title + _left(seconds_left), title_justify="left")
    for column in ("run", "done", "A (mean)", "now"):
        table.add_column(column)
    groups = by_label(rows)
    means = {label: _mean(group) for label, group in groups.items()}
    best = {
        split: max(mean for label, mean in means.items() if label.rpartition("/")[0] == split)
        for split in {label.rpartition("/")[0] for label in means}
    }
    for label, group in groups.items():
        mean = means[label]
        strong = "bold" if mean > 0 and mean == best[label.rpartition("/")[0]] else ""
        done = sum(row.state == "done" for row in group)
        table.add_row(label, f"{done}/{len(group)}", f"{mean:.2%}" if done else "", _now(group), style=strong)
    return table


def _mean(group: "Sequence[Row]") -> float:
    known = [row.accuracy for row in group if row.accuracy is not None]
    return sum(known) / len(known) if known else 0.0


def _now(group: "Sequence[Row]") -> str:
    running = [f"seed {row.run.config.seed}: {row.tasks} tasks learned" for row in group if row.state == "running"]
    return "; ".join([*running, *(f"failed: {row.reason}" for row in group if row.state == "failed")])


def _left(seconds: float | None) -> str:
    from etag.core.text import duration

    return f"; about {duration(seconds)} left" if seconds else ""
