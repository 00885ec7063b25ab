"""The Python interface to runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etag.engine.runtime import is_follower
from etag.experiments import plugins as plugin_files
from etag.experiments import run as runs
from etag.experiments.config import RunConfig, resolve


def run(
    recipe: str | None = None,
    *,
    method: str | None = None,
    data: str | None = None,
    split: str | None = None,
    seed: int | None = None,
    preset: str | None = None,
    out: str | Path | None = None,
    restart: bool = False,
    settings: dict[str, Any] | None = None,
    plugins: Sequence[str | Path] = (),
    verbose: bool = False,
) -> dict[str, Any]:
    """Learn a scenario task by task and return its metrics; the run directory also contains a report.

    `settings` holds single options by dotted key, such as {"train.epochs": 5}. Everything else comes from the
    recipe, or from the defaults, which are the paper's. `plugins` are Python files that are run; nothing else has
    code loaded.
    """
    named: dict[str, Any] = {"method": method, "data": data, "split": split, "seed": seed}
    named |= {"plugins": plugin_files.load(plugins) or None}
    given = {key: value for key, value in named.items() if value is not None}
    config = resolve(recipe, given | (settings or {}), preset=preset)
    return execute(config, Path(out) if out else default_directory(config), restart, verbose)


def execute(config: RunConfig, out: Path, restart: bool, verbose: bool, report: bool = True) -> dict[str, Any]:
    """Run a configuration and write its report."""
    metrics = runs.run(config, out, restart=restart, verbose=verbose)
    if report and not is_follower():
        from etag.report.page import write_run_report  # matplotlib is only needed now

        write_run_report(out)
    return metrics


def default_directory(config: RunConfig) -> Path:
    """The run directory where none is given."""
    return Path("runs") / f"{config.method.name}-{config.data.name}-{config.split}-seed{config.seed}"
