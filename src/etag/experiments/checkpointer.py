"""Checkpoints inside a task: a run that is cut goes on where it was, to the same result, bit for bit.

Tensors lie in files named after their own checksum, so what does not change is written once and what is damaged is
found out. Two manifests take turns: while one is written the other is whole.
"""

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from etag.core.errors import Diverged
from etag.core.files import checksum, write_atomically
from etag.experiments.store import UNREADABLE
from etag.methods.base import Method

TRAINING = "training"  # beside the method's parts: the state of optimizers and schedule


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop, and has saved what it had done."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


class Stop:
    """Whether somebody asked the run to stop. Asking twice stops it at once, without saving.

    Of several processes one may be asked, but all stop, at the same place: `highest` is the highest number that any
    of them knows.
    """

    def __init__(self, highest: Callable[[int], int] = int) -> None:
        self.number, self.highest = 0, highest

    @contextmanager
    def listening(self, say: Callable[[str], None]) -> Iterator[None]:
        """Within, SIGINT and SIGTERM are requests."""

        def note(number: int, _: FrameType | None) -> None:
            if self.number:
                raise Interrupted(number)
            self.number = number
            say("stopping as soon as the work so far is saved; once more stops at once.")

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def check(self) -> None:
        """Stop now, if asked to."""
        if number := self.highest(self.number):
            raise Interrupted(number)


class TaskCheckpointer:
    """Remembers the work of one task in a folder of the run."""

    def __init__(
        self,
        folder: Path,
        method: Method,
        task: int,
        *,
        every: float,
        every_steps: int | None,
        writes: bool,
        stop: Stop,
        say: Callable[[str], None],
    ) -> None:
        self._folder, self._method, self._task = folder, method, task
        self._every, self._every_steps = every, every_steps
        self._writes, self._stop, self._say = writes, stop, say
        found = self._newest()
        self._found: dict[str, Any] | None = found
        self._serial: int = found["serial"] if found else 0
        self._results: list[str | None] = list(found["results"]) if found else []
        self.logged: dict[str, int | None] = dict(found["logged"]) if found else {}  # steps by phase; None: all
        self._before: float = found["seconds"] if found else 0.0
        self._began = self._saved = time.perf_counter()
        self._saved_step = 0  # of the phase at hand
        self.last = self.where or "its beginning"  # where the newest checkpoint is, for people

    @property
    def seconds(self) -> float:
        """Spent on the task, before it was cut too."""
        return self._before + time.perf_counter() - self._began

    @property
    def where(self) -> str | None:
        """The place it was cut at, for people."""
        if self._found is None:
            return None
        return self._place(self._found["phase"])

    def _place(self, phase: str | None) -> str:
        return f"step {self.logged[phase]} of phase '{phase}'" if phase else f"piece {len(self._results)} of the work"

    # -- what the engine asks and tells ---------------------------------------------------------------------------

    def done(self, number: int) -> bool:
        """Whether a piece was finished; the last one brings everything that is kept to where it was after it."""
        if self._found is None or number >= len(self._found["results"]):
            return False
        if number == len(self._found["results"]) - 1 and not self._found["phase"]:
            self._restore()
        return True

    def result(self, number: int) -> dict[str, Tensor]:
        """What a finished sweep found."""
        name = self._results[number]
        device = self._method.context.placement.device
        return {} if name is None else {key: value.to(device) for key, value in self._read(name).items()}

    def resume(self) -> dict[str, Tensor]:
        """The state of the phase that was cut: the first piece that is not done."""
        if self._found is None or not self._found["phase"] or len(self._results) > len(self._found["results"]):
            return {}
        self._restore()
        state = self._read(self._found["parts"][TRAINING])
        self._saved_step = int(state["step"])
        return state

    def due(self, step: int) -> bool:
        """Whether the last checkpoint is old enough, or the run is to stop."""
        old = time.perf_counter() - self._saved >= self._every
        old |= self._every_steps is not None and step - self._saved_step >= self._every_steps
        return bool(self._stop.highest(self._stop.number or old))

    def save(self, name: str, state: dict[str, Tensor]) -> None:
        """Within a phase."""
        self.logged[name] = self._saved_step = int(state["step"])
        self._write(name, state)
        self._stop.check()

    def finish(self, name: str, result: dict[str, Tensor]) -> None:
        """After a phase or sweep."""
        self._results.append(self._blob(result) if result and self._writes else None)
        self.logged[name], self._saved_step = None, 0
        self._write(None, {})
        self._stop.check()

    def clear(self) -> None:
        """The task is done and kept elsewhere."""
        if self._writes:
            shutil.rmtree(self._folder, ignore_errors=True)

    # -- files ----------------------------------------------------------------------------------------------------

    def _write(self, phase: str | None, state: dict[str, Tensor]) -> None:
        self._check_finite()
        self._saved = time.perf_counter()
        if not self._writes:
            return
        parts = {role: self._blob(part.state_dict()) for role, part in self._method.parts().items()}
        if state:
            parts[TRAINING] = self._blob(state)
        self._serial += 1
        content = {
            "serial": self._serial,
            "task": self._task,
            "task_sizes": self._method.task_sizes,
            "results": self._results,
            "phase": phase,
            "logged": self.logged,
            "seconds": self.seconds,
            "parts": parts,
        }
        text = json.dumps(content)
        sealed = json.dumps({"checksum": checksum(text.encode()), "content": text})
        write_atomically(self._manifest(self._serial), sealed)
        self.last = self._place(phase)
        self._remove_unused()

    def _check_finite(self) -> None:
        """A loss may still be a number when the weights are none: what cannot be gone on with is not saved."""
        for role, part in self._method.parts().items():
            for name, value in part.state_dict().items():
                if value.is_floating_point() and not value.isfinite().all():
                    raise Diverged(
                        f"'{role}.{name}' is no longer made of numbers: lower the learning rate, or set "
                        "train.clip_norm."
                    )

    def _manifest(self, serial: int) -> Path:
        return self._folder / f"checkpoint-{serial % 2}.json"

    def _blob(self, tensors: dict[str, Tensor]) -> str:
        """Write tensors under the name of their checksum, if they are not there yet."""
        data = save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
        name = checksum(data)
        path = self._folder / f"{name}.safetensors"
        if not path.is_file():
            self._folder.mkdir(exist_ok=True)
            write_atomically(path, data)
        return name

    def _read(self, name: str) -> dict[str, Tensor]:
        data = (self._folder / f"{Path(name).name}.safetensors").read_bytes()
        if checksum(data) != name:
            raise ValueError(f"{name}.safetensors is damaged")
        return load(data)

    def _restore(self) -> None:
        assert self._found is not None
        for role, part in self._method.parts().items():
            part.load_state_dict(self._read(self._found["parts"][role]))

    def _newest(self) -> dict[str, Any] | None:
        """The newest whole checkpoint of this task. A damaged one is told of, and the one before it taken."""
        whole, damaged = [], 0
        for serial in (0, 1):
            path = self._manifest(serial)
            if not path.is_file():
                continue
            try:
                content = self._unsealed(path.read_bytes())
                if content["task"] == self._task:
                    for name in [*content["parts"].values(), *filter(None, content["results"])]:
                        self._read(name)
                    whole.append(content)
            except UNREADABLE:
                damaged += 1
        newest = max(whole, key=lambda content: content["serial"], default=None)
        if damaged:
            instead = "the one before it is used" if newest else "the task begins anew"
            self._say(f"a checkpoint in '{self._folder}' is damaged: {instead}.")
        return newest

    @staticmethod
    def _unsealed(data: bytes) -> dict[str, Any]:
        sealed = json.loads(data)
        text = sealed["content"]
        if checksum(text.encode()) != sealed["checksum"]:
            raise ValueError("damaged")
        content: dict[str, Any] = json.loads(text)
        return content

    def _remove_unused(self) -> None:
        """Remove what neither manifest names."""
        named = set()
        for serial in (0, 1):
            try:
                content = self._unsealed(self._manifest(serial).read_bytes())
                named |= {*content["parts"].values(), *filter(None, content["results"])}
            except UNREADABLE:
                continue
        for path in self._folder.glob("*.safetensors"):
            if path.stem not in named:
                path.unlink()
