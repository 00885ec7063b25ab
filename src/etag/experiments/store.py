"""A run on disk: its directory, and its model as safetensors and JSON."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from etag.core.errors import EtagError
from etag.core.files import write_atomically
from etag.core.random import Placement, Stream
from etag.data.preprocess import Preprocess
from etag.experiments import yaml
from etag.experiments.config import RunConfig, validate
from etag.methods.base import METHODS, Context, Method

FORMAT = 1


class RunDirectory:
    """The files of one run. `metrics.json` is written last: where it is, the run is complete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.metrics = path / "config.yaml", path / "metrics.json"
        self.steps, self.embedding = path / "steps.jsonl", path / "embedding.json"
        self.weights, self.model = path / "model.safetensors", path / "model.json"

    def begin(self, config: RunConfig, restart: bool) -> None:
        """Make it ready for a new run. What is there is only replaced when asked for, and only if it is a run."""
        if self.path.exists() and any(self.path.iterdir() if self.path.is_dir() else [self.path]):
            if not self.config.is_file():
                raise EtagError(f"'{self.path}' exists and is no run directory: choose another one with --out.")
            if not restart:
                state = "a finished run" if self.metrics.is_file() else "an unfinished run"
                raise EtagError(f"'{self.path}' already holds {state}: add --restart to replace it, or choose --out.")
            shutil.rmtree(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.config, yaml.write(config.plain()))
        except OSError as error:
            raise EtagError(f"the run directory '{self.path}' can not be written: {error.strerror}.") from error

    def write_json(self, path: Path, value: dict[str, Any]) -> None:
        """One of the directory's JSON files: a key a line, so that it can be read and compared."""
        lines = (f" {json.dumps(key)}: {json.dumps(content)}" for key, content in value.items())
        write_atomically(path, "{\n" + ",\n".join(lines) + "\n}\n")

    def save_model(self, method: Method, config: RunConfig, class_names: tuple[str, ...]) -> None:
        """What is needed to predict and to go on learning: tensors by part, and the sizes to rebuild them."""
        write_atomically(self.weights, save({k: v.contiguous() for k, v in tensors(method).items()}))
        about = {
            "format": FORMAT,
            "config": config.plain(),
            "task_sizes": method.task_sizes,
            "class_names": class_names,
            "channels": method.context.channels,
            "classes": method.context.classes,
            "preprocess": asdict(method.context.preprocess),
        }
        self.write_json(self.model, about)

    def load_model(self, placement: Placement | None = None) -> Method:
        """The method as it was at the end of the run."""
        try:
            about = json.loads(self.model.read_text())
            if about["format"] != FORMAT:
                raise EtagError(f"{self.model} has format {about['format']}; this version reads format {FORMAT}.")
            given: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in about["preprocess"].items()
            }
            method = create_method(
                validate(about["config"]),
                placement or Placement(),
                Preprocess(**given),
                channels=about["channels"],
                classes=about["classes"],
            )
            method.rebuild(about["task_sizes"])
            kept = load_file(self.weights)
            for role, part in method.parts().items():
                prefix = f"{role}."
                part.load_state_dict({k.removeprefix(prefix): v for k, v in kept.items() if k.startswith(prefix)})
                part.eval()
        except (OSError, KeyError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
            reason = str(error).splitlines()[0]
            raise EtagError(f"'{self.path}' does not hold a model that can be read: {reason}.") from error
        return method


def create_method(
    config: RunConfig, placement: Placement, preprocess: Preprocess, *, channels: int, classes: int
) -> Method:
    """A method before its first task, for images of this kind."""
    context = Context(
        channels=channels,
        size=preprocess.size,
        classes=classes,
        stream=Stream.root(config.seed),
        placement=placement,
        model=config.model,
        train=config.train,
        preprocess=preprocess,
    )
    return METHODS[config.method.name](config.method, context)


def networks(method: Method) -> dict[str, nn.Module]:
    """The method's networks, the solver's parts apart, by name."""
    found: dict[str, nn.Module] = {}
    for role, part in method.parts().items():
        found |= dict(part.named_children()) if role == "solver" else {role: part}
    return found


def tensors(method: Method) -> dict[str, Tensor]:
    """Everything a method keeps, by role and name."""
    return {
        f"{role}.{name}": value for role, part in method.parts().items() for name, value in part.state_dict().items()
    }
