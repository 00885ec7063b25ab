"""Recipes: YAML files that name a run's choices. They come with the package; a path to a file works too."""

from pathlib import Path
from typing import Any

from etag.core.errors import EtagError, unknown_name
from etag.core.options import merge
from etag.experiments import yaml


def folder() -> Path:
    """Where the recipes are: inside an installed package, or at the top of a working tree."""
    package = Path(__file__).parents[1]
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parents[1] / "recipes"


def available() -> dict[str, Path]:
    """Recipes by name: the path below the folder, without its ending. Those that begin with _ are for others."""
    root = folder()
    others = {*_below("presets"), *_below("grids")}
    files = (file for file in sorted(root.rglob("*.yaml")) if not file.name.startswith("_") and file not in others)
    return {file.relative_to(root).with_suffix("").as_posix(): file for file in files}


def load(name: str) -> dict[str, Any]:
    """The content of a recipe, by name or by path."""
    known = available()
    if name in known:
        return _read(known[name])
    path = Path(name).expanduser()
    if path.suffix in {".yaml", ".yml"}:
        if not path.is_file():
            raise EtagError(f"the recipe file '{name}' does not exist.")
        return _read(path)
    raise unknown_name("recipe", name, known)


def _below(kind: str) -> list[Path]:
    return sorted((folder() / kind).glob("*.yaml"))


def grids() -> dict[str, Path]:
    """The grids that come with the package."""
    return {file.stem: file for file in _below("grids")}


def grid_file(name: str) -> Path:
    """A grid's file, by name or by path."""
    known, path = grids(), Path(name).expanduser()
    if name not in known and path.suffix in {".yaml", ".yml"}:
        if not path.is_file():
            raise EtagError(f"the grid file '{name}' does not exist.")
        return path
    if name not in known:
        raise unknown_name("grid", name, known)
    return known[name]


def preset(name: str) -> dict[str, Any]:
    """The content of a preset: what shall be otherwise in any recipe."""
    known = {file.stem: file for file in _below("presets")}
    if name not in known:
        raise unknown_name("preset", name, known)
    return _read(known[name])


def default_for(source: str) -> dict[str, Any]:
    """The recipe named after a data source; nothing if there is none."""
    known = available()
    return _read(known[source]) if source in known else {"data": source}


def summary(path: Path) -> str:
    """A recipe's own description."""
    return str(yaml.read(path).get("summary", ""))


def _read(path: Path) -> dict[str, Any]:
    """A recipe's content upon that of the recipes it extends."""
    content = yaml.read(path)
    content.pop("summary", None)
    merged: dict[str, Any] = {}
    below = content.pop("extends", [])
    for name in [below] if isinstance(below, str) else below:
        other = path.parent / f"{name}.yaml"
        if not other.is_file():
            raise EtagError(f"{path} extends '{name}', but {other} does not exist.")
        merged = merge(merged, _read(other))
    return merge(merged, content)
