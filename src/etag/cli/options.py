"""Arguments and options that several commands have."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Model = Annotated[Path, typer.Argument(help="A model directory: of `etag learn`, or of a finished `etag run`.")]
Workers = Annotated[int, typer.Option(help="Processes that decode images in advance.", min=0)]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="Where to compute; auto: on a GPU if there is one.")
]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any option: train.steps=300.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done and how long it would take.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

Labels = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.csv|names",
        help="Labels from a CSV file with the columns path and label, or from names of files such as cat-001.jpg.",
    ),
]
Nested = Annotated[
    bool, typer.Option("--nested", help="The sub-folders are the classes, with everything below them; do not ask.")
]


def _load_plugins(files: list[str] | None) -> list[str]:
    """Load plug-ins as soon as the option is read; installed ones are loaded even if none is named."""
    from etag.experiments import plugins

    return plugins.load(files or [])


def _load_named_plugins(files: list[str] | None) -> list[str]:
    """Load only what this command line names: a model that somebody else made is looked at with nothing else."""
    if not files:
        return []
    from etag.experiments import plugins

    return plugins.load_files(files)


_PLUGIN: dict[str, Any] = {"metavar": "FILE", "help": "Python file with your own methods etc."}
Plugins = Annotated[list[str] | None, typer.Option("--plugin", callback=_load_plugins, **_PLUGIN)]
NamedPlugins = Annotated[list[str] | None, typer.Option("--plugin", callback=_load_named_plugins, **_PLUGIN)]
