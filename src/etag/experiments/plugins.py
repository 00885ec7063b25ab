"""Plug-ins: methods, backbones and data sources from a user's own file or from an installed package."""

import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from pathlib import Path

from etag.core.errors import EtagError

GROUP = "etag.plugins"  # the entry points of packages that register something on import
_loaded: set[str] = set()


def load(files: Iterable[str | Path]) -> list[str]:
    """Run each file once, after the installed plug-ins; returns the files' full paths."""
    for entry in entry_points(group=GROUP):
        if entry.value not in _loaded:
            _guarded(f"the installed plug-in '{entry.name}'", entry.load)
            _loaded.add(entry.value)
    paths = [str(Path(file).expanduser().resolve()) for file in files]
    for path in paths:
        if path not in _loaded:
            _run_file(path)
            _loaded.add(path)
    return paths


def _run_file(path: str) -> None:
    if not Path(path).is_file():
        raise EtagError(f"the plug-in '{path}' does not exist.")
    name = f"etag_plugin_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise EtagError(f"the plug-in '{path}' is not a Python file: its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that pickle and the like find what the file defines
    loader = spec.loader
    _guarded(f"the plug-in '{path}'", lambda: loader.exec_module(module))


def _guarded(which: str, work: Callable[[], object]) -> None:
    """Do the work; an exception of the plug-in's code becomes an `EtagError` that names the plug-in and the line."""
    try:
        work()
    except EtagError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise EtagError(f"{which} failed in line {last.lineno}: {type(error).__name__}: {error}.") from error
