"""Plug-ins: methods, backbones and data sources from a user's own file or from an installed package.

Only users load them: on the command line, in the environment, from Python, or by installing a package. A recipe, a grid
or a configuration may say which plug-ins it needs, but never has one loaded.
"""

import importlib.util
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from etag.core.errors import EtagError
from etag.core.registry import PLUGIN_PREFIX
from etag.core.text import brief

GROUP = "etag.plugins"  # the entry points of packages that register something on import
ENVIRONMENT = "ETAG_PLUGINS"  # files, separated as in PATH
_loaded: set[str] = set()


def load(files: Iterable[str | Path] = ()) -> list[str]:
    """Load the installed plug-ins, those that the environment names, and these files; returns these files' full paths.
    Each is run once."""
    for entry in entry_points(group=GROUP):
        if entry.value not in _loaded:
            _guarded(f"the installed plug-in '{entry.name}'", entry.load)
            _loaded.add(entry.value)
    load_files(filter(None, os.environ.get(ENVIRONMENT, "").split(os.pathsep)))
    return load_files(files)


def load_files(files: Iterable[str | Path]) -> list[str]:
    """Run each of these files once, and load nothing else; returns their full paths."""
    paths = [_full_path(file) for file in files]
    for path in paths:
        if path not in _loaded:
            _run_file(path)
            _loaded.add(path)
    return paths


def check_loaded(named: Any) -> list[str]:
    """The full paths of the plug-ins that a recipe, a grid or a configuration names; an error unless a user has loaded
    all of them."""
    if not isinstance(named, list) or not all(isinstance(file, str) for file in named):
        raise EtagError(f"option 'plugins' must be a list of Python files, but is {brief(named)}.")
    paths = [_full_path(file) for file in named]
    if missing := [path for path in dict.fromkeys(paths) if path not in _loaded]:
        allow = " ".join(f"--plugin {shlex.quote(path)}" for path in missing)
        raise EtagError(
            f"option 'plugins' names {', '.join(missing)}, but only the command line runs code: read it, and if you "
            f"trust it, add {allow}."
        )
    return paths


def _full_path(file: str | Path) -> str:
    try:
        return str(Path(os.path.expanduser(file)).resolve())
    except (OSError, ValueError, RuntimeError) as error:  # such as a NUL, or links in a circle
        raise EtagError(f"one of the plugins, {brief(str(file))}, is not a file: {error}.") from error


def _run_file(path: str) -> None:
    if not Path(path).is_file():
        raise EtagError(f"the plug-in '{path}' does not exist.")
    name = f"{PLUGIN_PREFIX}{Path(path).stem}"
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
