"""A run on disk: its directory, and its model as safetensors and JSON."""

import json
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn import functional

from etag.core.errors import EtagError
from etag.core.files import is_partial, locked, write_atomically
from etag.core.random import Placement, Stream
from etag.data.preprocess import Preprocess
from etag.experiments import plugins, yaml
from etag.experiments.config import RunConfig, validate
from etag.experiments.record import Record
from etag.methods.base import Context, Method
from etag.methods.registry import METHODS

FORMAT = 1
LOCK = ".lock"
UNREADABLE = (OSError, KeyError, ValueError, TypeError, RuntimeError, SafetensorError)  # what damaged files raise


class RunDirectory:
    """The files of one run. `metrics.json` is written last: where it is, the run is complete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.metrics = path / "config.yaml", path / "metrics.json"
        self.steps, self.embedding = path / "steps.jsonl", path / "embedding.json"
        self.weights, self.model = path / "model.safetensors", path / "model.json"
        self.made = path / "generated"  # images from the generator, one file per task
        self.progress = path / "progress.json"  # while the run is unfinished
        self.checkpoints = path / "checkpoints"  # of the task at hand

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else works in it meanwhile. It is made if it is not there."""
        if self._content() and not self.config.is_file():
            raise EtagError(f"'{self.path}' exists and is no run directory: choose another one with --out.")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / LOCK).touch()
        except OSError as error:
            raise EtagError(f"the run directory '{self.path}' cannot be written: {error.strerror}.") from error
        with locked(self.path / LOCK, f"another process works in '{self.path}': wait for it, or choose --out."):
            yield

    def _content(self) -> list[Path]:
        """What lies in it, but for the lock and what a killed process had not finished writing."""
        if not self.path.is_dir():
            return [self.path] if self.path.exists() else []
        return [path for path in self.path.iterdir() if path.name != LOCK and not is_partial(path)]

    def begin(self, config: RunConfig, restart: bool) -> None:
        """Make it ready. A run of the same configuration is gone on with; any other is replaced only if asked to."""
        for left in filter(is_partial, [*self.path.iterdir(), *self.checkpoints.glob("*")]):
            left.unlink()
        if self._content():
            if not restart:
                self.check(config)
                return
            for path in self._content():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        write_atomically(self.config, yaml.write(config.plain()))

    def finished(self, config: RunConfig) -> bool:
        """Whether it holds this run, complete."""
        if not (self.config.is_file() and self.metrics.is_file()):
            return False
        self.check(config)
        return True

    def check(self, config: RunConfig) -> None:
        """Refuse to go on if it holds a run of another configuration."""
        if not self.config.is_file():
            return
        there, asked = _flat(yaml.read(self.config)), _flat(config.plain())
        differences = [
            f"{key} is {there.get(key)!r} there and {asked.get(key)!r} here"
            for key in sorted(there.keys() | asked.keys())
            if there.get(key) != asked.get(key) and not key.startswith("runtime.")
        ]
        if differences:
            state = "a finished run" if self.metrics.is_file() else "an unfinished run"
            raise EtagError(
                f"'{self.path}' already holds {state} of another configuration ({'; '.join(differences)}): add "
                "--restart to replace it, or choose --out."
            )

    def keep(self, method: Method, record: Record) -> None:
        """After a task: all that is needed to go on from here. What was kept before stays until this is whole."""
        done = len(record.evaluations)
        state = self.path / f"state-{done}.safetensors"
        self._write_tensors(state, method)
        kept = {"tasks": done, "task_sizes": method.task_sizes, "state": state.name, "record": record.plain()}
        self.write_json(self.progress, kept)
        (self.path / f"state-{done - 1}.safetensors").unlink(missing_ok=True)

    def keep_made(self, task: int, images: Tensor, columns: int) -> None:
        """A picture of what the generator makes after a task: rows of images, a pixel apart."""
        framed = functional.pad(images, (1,) * 4, value=1.0)
        rows = framed.view(-1, columns, *framed.shape[1:])
        sheet = rows.permute(0, 3, 1, 4, 2).flatten(0, 1).flatten(1, 2)  # (height, width, channels)
        values = (255 * sheet).round().byte().cpu().numpy()
        picture = Image.fromarray(values[..., 0] if values.shape[2] == 1 else values)
        buffer = BytesIO()
        picture.save(buffer, format="png", optimize=True)
        self.made.mkdir(exist_ok=True)
        write_atomically(self.made / f"task-{task + 1:03}.png", buffer.getvalue())

    def embedding_after(self, task: int) -> Path:
        """The picture of the feature space after a task."""
        return self.path / f"embedding-{task + 1:03}.json"

    def restore(self, method: Method) -> Record:
        """Bring a new method to where the run was cut off."""
        try:
            kept = json.loads(self.progress.read_text())
            method.rebuild(kept["task_sizes"])
            _read_tensors(self.path / Path(kept["state"]).name, method)
            return Record.from_plain(kept["record"])
        except UNREADABLE as error:
            raise self._not_to_be_gone_on_with(error) from error

    def cut_steps(self, tasks: int, logged: dict[str, int | None]) -> None:
        """Forget the logged steps after the last checkpoint: they will be made again.

        `tasks` are whole; of the one after them, `logged` has the steps to keep of each phase (None: all).
        """

        def keeps(line: dict[str, Any]) -> bool:
            if line["task"] != tasks or line["phase"] not in logged:
                return bool(line["task"] < tasks)
            last = logged[line["phase"]]
            return last is None or line["step"] <= last

        try:
            lines = self.steps.read_text().splitlines(keepends=True) if self.steps.is_file() else []
            whole = (line for line in lines if line.endswith("\n"))
            write_atomically(self.steps, "".join(line for line in whole if keeps(json.loads(line))))
        except UNREADABLE as error:
            raise self._not_to_be_gone_on_with(error) from error

    def _not_to_be_gone_on_with(self, error: Exception) -> EtagError:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return EtagError(f"'{self.path}' cannot be gone on with ({reason}): begin anew with --restart.")

    def finish(self, metrics: dict[str, Any]) -> None:
        """Write the metrics, which say that the run is complete, and drop what was kept for going on."""
        self.write_json(self.metrics, metrics)
        self.progress.unlink(missing_ok=True)
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        for state in self.path.glob("state-*.safetensors"):
            state.unlink()

    def write_json(self, path: Path, value: dict[str, Any]) -> None:
        """One of the directory's JSON files: a key a line, so that it can be read and compared."""
        lines = (f" {json.dumps(key)}: {json.dumps(content)}" for key, content in value.items())
        write_atomically(path, "{\n" + ",\n".join(lines) + "\n}\n")

    def save_model(self, method: Method, config: RunConfig, class_names: tuple[str, ...]) -> None:
        """What is needed to predict and to go on learning: tensors by part, and the sizes to rebuild them."""
        self._write_tensors(self.weights, method)
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

    def load_model(self, placement: Placement | None = None, trusted: Sequence[str | Path] = ()) -> Method:
        """The method as it was at the end of the run.

        A model may come from a stranger, so no code that it names is run: plug-ins that it needs must be `trusted`,
        or loaded already.
        """
        plugins.load(trusted)
        try:
            about = json.loads(self.model.read_text())
            if strange := plugins.not_loaded(about["config"].get("plugins", [])):
                raise EtagError(
                    f"the model in '{self.path}' needs code from {', '.join(map(repr, strange))}, which is only run "
                    "if you name it as a plug-in yourself."
                )
            if about["format"] != FORMAT:
                raise EtagError(f"{self.model} has format {about['format']}; this version reads format {FORMAT}.")
            method = create_method(
                validate(about["config"]),
                placement or Placement(),
                Preprocess.from_plain(about["preprocess"]),
                channels=about["channels"],
                classes=about["classes"],
            )
            method.rebuild(about["task_sizes"])
            _read_tensors(self.weights, method)
        except UNREADABLE as error:
            reason = str(error).splitlines()[0]
            raise EtagError(f"'{self.path}' does not hold a model that can be read: {reason}.") from error
        return method

    def _write_tensors(self, path: Path, method: Method) -> None:
        write_atomically(path, save({name: value.contiguous() for name, value in tensors(method).items()}))


def _read_tensors(path: Path, method: Method) -> None:
    fill(method, load_file(path))


def fill(method: Method, kept: dict[str, Tensor], roles: Collection[str] | None = None) -> None:
    """Put what was kept of a method's parts, by role and name, back into them: into all, or those of some roles."""
    for role, part in method.parts().items():
        if roles is None or role in roles:
            prefix = f"{role}."
            part.load_state_dict({k.removeprefix(prefix): v for k, v in kept.items() if k.startswith(prefix)})
        part.eval()


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """By dotted key."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def create_method(
    config: RunConfig,
    placement: Placement,
    preprocess: Preprocess,
    *,
    channels: int,
    classes: int,
    learns: bool = True,
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
        learns=learns,
    )
    return METHODS[config.method.name](config.method, context)


def networks(method: Method) -> dict[str, nn.Module]:
    """The method's networks, the solver's parts apart, by name."""
    found: dict[str, nn.Module] = {}
    for role, part in method.parts().items():
        found |= dict(part.named_children()) if role == "solver" else {role: part}
    return found


def parameter_counts(method: Method) -> dict[str, int]:
    """Parameters of each of its networks."""
    return {name: sum(p.numel() for p in part.parameters()) for name, part in networks(method).items()}


def tensors(method: Method) -> dict[str, Tensor]:
    """Everything a method keeps, by role and name."""
    return {
        f"{role}.{name}": value for role, part in method.parts().items() for name, value in part.state_dict().items()
    }
