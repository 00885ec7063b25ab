"""Arguments in the wrong order: a folder of images where the model should be, and the model where images should be."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from etag.core.errors import EtagError
from etag.data.folders import list_images
from etag.learner.model_directory import ModelDirectory


def check_order(command: str, model: Path, paths: Sequence[str | Path]) -> None:
    """Raise an error if a path of images is a model directory, or is missing while the model is a folder of images."""
    if not ModelDirectory(model).exists() and model.exists():
        if models := _models(paths):
            raise _swapped(command, model, models[0], f"'{models[0]}' is a model directory, and '{model}' is not")
        if paths and not any(Path(path).exists() for path in paths) and model.is_dir() and list_images(model):
            raise _swapped(command, model, paths[0], f"'{model}' holds images, and there is no '{paths[0]}'")
    check_no_model(command, paths)


def check_no_model(command: str, paths: Sequence[str | Path]) -> None:
    """Raise an error if a path of images is a model directory."""
    if models := _models(paths):
        raise EtagError(f"'{models[0]}' is a model directory: `etag {command}` needs images here.")


def _models(paths: Sequence[str | Path]) -> list[Path]:
    return [Path(path) for path in paths if ModelDirectory(path).exists()]


def _swapped(command: str, model: Path, path: str | Path, why: str) -> EtagError:
    right = shlex.join([str(path), str(model)])
    return EtagError(f"{why}, but the model comes before the images: try `etag {command} {right}`.")
