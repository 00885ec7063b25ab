"""The layout of the paper's tables and figures, read from layout.yaml."""

from functools import cache
from pathlib import Path

from etag.core.options import Options
from etag.experiments import yaml_files

FILE = Path(__file__).with_name("layout.yaml")


class Layout(Options):
    """Names of methods and runs, by the part of the paper that shows them."""

    main: str
    bounds: list[str]
    letters: dict[str, str]
    figure3: list[str]
    detailed: list[str]
    ablations: list[str]
    figure5: list[str]
    self_supervised: list[tuple[str, str, str]]
    temperature_runs: str
    temperature_option: str


@cache
def layout() -> Layout:
    """The content of layout.yaml."""
    return Layout.model_validate(yaml_files.read(FILE))
