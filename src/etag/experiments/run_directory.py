"""The directory of a run: a model directory, and beside it the run's configuration, log and metrics."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional

from etag.core.errors import EtagError
from etag.core.files import locked, make_folder, read_file, remove, remove_partial, write_atomically
from etag.core.options import RuntimeOptions, dotted
from etag.experiments import yaml_files
from etag.experiments.config import RunConfig
from etag.learner.model_directory import LOCK, ModelDirectory


class RunDirectory:
    """The files of one run. `metrics.json` is written last: where it exists, the run is complete."""

    def __init__(self, path: Path) -> None:
        self.path, self.model = path, ModelDirectory(path)
        self.config, self.metrics = path / "config.yaml", path / "metrics.json"
        self.steps, self.versions = path / "steps.jsonl", path / "versions"
        self.features = path / "features"  # of some test images, one file per task
        self.frozen_features = path / "frozen-features"  # of all images, while the run is unfinished
        self._restarting = path / "restarting"  # a marker: --restart is deleting the run
        self.generated = path / "generated"  # images that show what a generator generates, one file per task

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out; the directory is created if it does not exist."""
        if self.model.content() and not (self.config.is_file() or self.restarting):
            raise EtagError(f"'{self.path}' exists and is not a run directory: choose another one with --out.")
        self.model.check_links()
        with locked(self.path / LOCK, f"another process is using '{self.path}': wait for it, or choose --out."):
            yield

    @property
    def restarting(self) -> bool:
        """Whether --restart was killed while it deleted the run that was here."""
        return self._restarting.is_file()

    @property
    def recorded_runtime(self) -> RuntimeOptions | None:
        """Where and in which precision the run began; None if there is no run, or if that cannot be read."""
        if self.restarting or not self.config.is_file():
            return None
        try:
            return RuntimeOptions.model_validate(yaml_files.read(self.config).get("runtime", {}))
        except ValidationError:
            return None

    def begin(self, config: RunConfig, restart: bool) -> None:
        """Prepare the directory: a run of the same configuration is resumed, any other replaced only on `restart`."""
        for folder in (self.path, self.features, self.generated):
            remove_partial(folder)
        if restart or self.restarting:
            self._delete_run()
        if self.model.content():
            self.check(config)
            make_folder(self.versions)  # a killed process may have written only `config`
            with self.resuming():
                self.model.recover()
        else:
            write_atomically(self.config, yaml_files.write(config.to_json()))
            make_folder(self.versions)

    @contextmanager
    def resuming(self) -> Iterator[None]:
        """Errors inside the `with` block say that the run can be started again."""
        try:
            yield
        except EtagError as error:
            raise EtagError(f"'{self.path}' cannot be resumed: {error} Start again with --restart.") from error

    def _delete_run(self) -> None:
        """Delete everything. A marker is written first and removed last: the next command completes a deletion that was
        killed. `current` is deleted before the rest, so that nobody predicts with half a model."""
        write_atomically(self._restarting, "")
        remove(self.model.path / "current")
        for path in self.model.content():
            if path != self._restarting:
                remove(path)
        remove(self._restarting)

    def finished(self, config: RunConfig) -> bool:
        """Whether it holds this run, complete."""
        if self.restarting or not (self.config.is_file() and self.metrics.is_file()):
            return False
        self.check(config)
        return True

    def read_metrics(self) -> dict[str, Any]:
        """The content of metrics.json."""
        try:
            metrics: dict[str, Any] = json.loads(read_file(self.metrics))
        except (OSError, ValueError) as error:
            raise EtagError(f"'{self.metrics}' cannot be read: {error}. Run it again with --restart.") from error
        return metrics

    def check(self, config: RunConfig) -> None:
        """Raise an error if it holds a run of another configuration."""
        if not self.config.is_file():
            return
        there, asked = dotted(self._recorded_config()), dotted(config.to_json())
        differences = [
            f"{key} is {there.get(key)!r} in the directory and {asked.get(key)!r} in this command"
            for key in sorted(there.keys() | asked.keys())
            if there.get(key) != asked.get(key) and not key.startswith("runtime.")
        ]
        if differences:
            state = "a finished run" if self.metrics.is_file() else "an unfinished run"
            raise EtagError(
                f"'{self.path}' already holds {state} of another configuration ({'; '.join(differences)}): add "
                "--restart to replace it, or choose --out."
            )

    def _recorded_config(self) -> dict[str, Any]:
        """The configuration of the run; options that did not exist when it began have their default, with which etag
        does what it did then."""
        values = yaml_files.read(self.config)
        try:
            return RunConfig.model_validate(values).to_json()
        except (ValidationError, EtagError):  # it has options that are gone, or was changed by hand
            return values

    def save_generated(self, task: int, images: Tensor, columns: int) -> None:
        """Save an overview of generated images after a task: rows of images, one pixel apart."""
        framed = functional.pad(images, (1,) * 4, value=1.0)
        rows = framed.view(-1, columns, *framed.shape[1:])
        sheet = rows.permute(0, 3, 1, 4, 2).flatten(0, 1).flatten(1, 2)  # (height, width, channels)
        values = (255 * sheet).round().byte().cpu().numpy()
        image = Image.fromarray(values[..., 0] if values.shape[2] == 1 else values)
        buffer = BytesIO()
        image.save(buffer, format="png", optimize=True)
        make_folder(self.generated)
        write_atomically(self.generated / f"task-{task + 1:03}.png", buffer.getvalue())

    def save_features(self, task: int, features: Tensor, labels: Tensor) -> None:
        """Save features of test images after a task."""
        buffer = BytesIO()
        np.savez_compressed(buffer, features=features.half().cpu().numpy(), labels=labels.cpu().numpy())
        make_folder(self.features)
        write_atomically(self.features / f"task-{task + 1:03}.npz", buffer.getvalue())

    def finish(self, metrics: dict[str, Any]) -> None:
        """Write the metrics, which mark the run as complete: one key per line, so that files can be compared."""
        remove(self.frozen_features)
        lines = (f" {json.dumps(key)}: {json.dumps(content)}" for key, content in metrics.items())
        write_atomically(self.metrics, "{\n" + ",\n".join(lines) + "\n}\n")
