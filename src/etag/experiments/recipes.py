"""Recipes, presets and grids: YAML files that come with the package; the path of a file works in place of a name."""

import os
from pathlib import Path
from typing import Any

from etag.core.errors import EtagError, unknown_name
from etag.core.options import merge
from etag.core.text import brief
from etag.experiments import yaml_files

MAX_EXTENDED = 50  # files that one recipe is put together from


def folder() -> Path:
    """The folder of the recipes: inside an installed package, or at the top of a working tree."""
    package = Path(__file__).parents[1]
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parents[1] / "recipes"


def available() -> dict[str, Path]:
    """Files of recipes by name, the path below the folder; those that start with _ are only extended by others."""
    root = folder()
    others = {*_files("presets"), *_files("grids")}
    files = (file for file in sorted(root.rglob("*.yaml")) if not file.name.startswith("_") and file not in others)
    return {file.relative_to(root).with_suffix("").as_posix(): file for file in files}


def load(name: str) -> dict[str, Any]:
    """The content of a recipe, by name or by path."""
    return _read(_find("recipe", name, available()))


def grids() -> dict[str, Path]:
    """Files of the grids that come with the package, by name."""
    return {file.stem: file for file in _files("grids")}


def grid_file(name: str) -> Path:
    """The file of a grid, by name or by path."""
    return _find("grid", name, grids())


def preset(name: str) -> dict[str, Any]:
    """The content of a preset: options that are laid over any recipe."""
    return _read(_find("preset", name, {file.stem: file for file in _files("presets")}))


def default_for(source: str) -> dict[str, Any]:
    """The content of the recipe named after a data source; without one, only the name of the source."""
    known = available()
    return _read(known[source]) if source in known else {"data": source}


def summary(path: Path) -> str:
    """The description in a recipe's or grid's key `summary`; empty without one."""
    return str(yaml_files.read(path).get("summary", ""))


def _files(kind: str) -> list[Path]:
    return sorted((folder() / kind).glob("*.yaml"))


def _find(kind: str, name: str, known: dict[str, Path]) -> Path:
    """The known file of this name, or else the file at this path."""
    if name in known:
        return known[name]
    path = Path(os.path.expanduser(name))
    if path.suffix not in {".yaml", ".yml"}:
        raise unknown_name(kind, name, known)
    if not os.path.isfile(path):
        raise EtagError(f"the {kind} file {brief(name)} does not exist, or is not a file.")
    return path


def _read(path: Path, opened: list[Path] | None = None) -> dict[str, Any]:
    """A recipe's content, laid over that of the recipes it extends; `opened` lists the files that were read so far."""
    opened = [] if opened is None else opened
    opened.append(path)
    if len(opened) > MAX_EXTENDED:
        raise EtagError(f"{opened[0]} extends more than {MAX_EXTENDED} recipes: does one of them extend itself?")
    content = yaml_files.read(path)
    content.pop("summary", None)
    merged: dict[str, Any] = {}
    extended = content.pop("extends", [])
    names = [extended] if isinstance(extended, str) else extended
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise EtagError(f"{path}: 'extends' must name a recipe, or a list of them, but is {brief(extended)}.")
    for name in names:
        other = path.parent / f"{name}.yaml"
        if not os.path.isfile(other):
            raise EtagError(f"{path} extends {brief(name)}, but there is no such file beside it: it does not exist.")
        if not other.resolve().is_relative_to(_home(path)):
            raise EtagError(f"{path} extends {brief(name)}, which is outside the folder of this recipe.")
        merged = merge(merged, _read(other, opened))
    return merge(merged, content)


def _home(path: Path) -> Path:
    """The folder that a recipe may extend recipes of: its own, or all recipes of the package."""
    own, all_recipes = path.resolve().parent, folder().resolve()
    return all_recipes if own.is_relative_to(all_recipes) else own
