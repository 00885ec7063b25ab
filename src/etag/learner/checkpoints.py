"""Checkpoints inside a task: an interrupted task is resumed to the same result, bit for bit.

Tensors are stored in files named after their checksum, so what does not change is written once and damage is
detected. Two manifests take turns: while one is written, the other is complete.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from etag.core.errors import Diverged
from etag.core.files import checksum, write_atomically
from etag.core.options import RuntimeOptions
from etag.learner.stopping import Stop
from etag.learner.tensors import UNREADABLE, TensorFiles
from etag.methods.base import AnyMethod

TRAINING = "training"  # beside the method's parts: the state of optimizers and schedule


class TaskCheckpointer:
    """Saves the progress of one task in a folder, and finds the newest complete checkpoint there."""

    def __init__(
        self,
        folder: Path,
        method: AnyMethod,
        task: int,
        options: RuntimeOptions,
        is_writer: bool,
        stop: Stop,
        print_line: Callable[[str], None],
    ) -> None:
        self._folder, self._method, self._task = folder, method, task
        self._files = TensorFiles(folder)
        self._every_seconds, self._every_steps = options.checkpoint_seconds, options.checkpoint_steps
        self._is_writer, self._stop, self._print_line = is_writer, stop, print_line
        manifest = self._newest()
        self._resumed_from: dict[str, Any] | None = manifest
        self._serial: int = manifest["serial"] if manifest else 0
        # one entry per finished phase or pass, in order: the result of a pass, in a file or not saved yet; None for a
        # phase
        self._results: list[str | dict[str, Tensor] | None] = list(manifest["results"]) if manifest else []
        self.saved_steps: dict[str, int | None] = (
            dict(manifest["saved_steps"]) if manifest else {}
        )  # by phase; None: the whole phase
        self._seconds_before: float = manifest["seconds"] if manifest else 0.0
        self._began = self._last_save_time = time.perf_counter()
        self._last_saved_step = 0  # of the current phase
        self.last_position = (
            self.resumed_at or "the beginning of the task"
        )  # where the newest checkpoint is, for messages

    @property
    def seconds(self) -> float:
        """Time spent on the task, including the time before an interruption."""
        return self._seconds_before + time.perf_counter() - self._began

    @property
    def resumed_at(self) -> str | None:
        """Where the interrupted task is resumed, for messages; None if there is nothing to resume."""
        return None if self._resumed_from is None else self._describe(self._resumed_from["phase"])

    def _describe(self, phase: str | None) -> str:
        if phase:
            return f"step {self.saved_steps[phase]} of phase '{phase}'"
        return f"the end of phase '{list(self.saved_steps)[-1]}'" if self.saved_steps else "the beginning of the task"

    # -- called by the engine ----------------------------------------------------------------------------------------

    def restore_if_finished(self, number: int) -> bool:
        """Whether a phase or pass was finished. If the checkpoint was saved right after it, the method is restored
        here; if it was saved inside the next phase, `resume` does it."""
        if self._resumed_from is None or number >= len(self._resumed_from["results"]):
            return False
        if number == len(self._resumed_from["results"]) - 1 and not self._resumed_from["phase"]:
            self._restore()
        return True

    def result(self, number: int) -> dict[str, Tensor]:
        """The result of a finished pass."""
        found = self._results[number]
        device = self._method.context.placement.device
        tensors = self._files.read(found) if isinstance(found, str) else found or {}
        return {key: value.to(device) for key, value in tensors.items()}

    def resume(self) -> dict[str, Tensor]:
        """The training state of the interrupted phase; empty if the phase that begins now is another one."""
        if (
            self._resumed_from is None
            or not self._resumed_from["phase"]
            or len(self._results) > len(self._resumed_from["results"])
        ):
            return {}
        self._restore()
        state = self._files.read(self._resumed_from["parts"][TRAINING])
        self._last_saved_step = int(state["step"])
        return state

    def due(self, step: int) -> bool:
        """Whether the last checkpoint is old enough, or the learner was asked to stop."""
        old = time.perf_counter() - self._last_save_time >= self._every_seconds
        old |= self._every_steps is not None and step - self._last_saved_step >= self._every_steps
        return bool(self._stop.max_over_processes(self._stop.signal_number or old))

    def save(self, name: str, state: dict[str, Tensor]) -> None:
        """Save the state within a phase."""
        self.saved_steps[name] = self._last_saved_step = int(state["step"])
        self._write(name, state)
        self._stop.check()

    def finish(self, name: str, result: dict[str, Tensor], spared: float = 0.0) -> None:
        """Save the state after a phase; after a pass only if a checkpoint is due: most passes take less time than
        saving their result. `spared` seconds of another run's work count as this one's."""
        self._seconds_before += spared
        self._results.append(result or None)
        self.saved_steps[name], self._last_saved_step = None, 0
        if not result or self.due(0):
            self._write(None, {})
        self._stop.check()

    # -- files -------------------------------------------------------------------------------------------------------

    def _write(self, phase: str | None, state: dict[str, Tensor]) -> None:
        self._check_finite()
        self._last_save_time = time.perf_counter()
        if not self._is_writer:
            return
        self._results = [self._files.write(found) if isinstance(found, dict) else found for found in self._results]
        parts = {role: self._files.write(part.state_dict()) for role, part in self._method.parts.items()}
        if state:
            parts[TRAINING] = self._files.write(state)
        self._serial += 1
        content = {
            "serial": self._serial,
            "task": self._task,
            "task_sizes": self._method.task_sizes,
            "results": self._results,
            "phase": phase,
            "saved_steps": self.saved_steps,
            "seconds": self.seconds,
            "parts": parts,
        }
        text = json.dumps(content)
        sealed = json.dumps({"checksum": checksum(text.encode()), "content": text})
        write_atomically(self._manifest(self._serial), sealed)
        self.last_position = self._describe(phase)
        self._remove_unused()

    def _check_finite(self) -> None:
        """Refuse to save weights that are not finite, even if the loss still is."""
        for role, part in self._method.parts.items():
            for name, value in part.state_dict().items():
                if value.is_floating_point() and not value.isfinite().all():
                    raise Diverged(
                        f"'{role}.{name}' contains NaN or infinity: lower the learning rate, or set train.clip_norm."
                    )

    def _manifest(self, serial: int) -> Path:
        return self._folder / f"checkpoint-{serial % 2}.json"

    def _restore(self) -> None:
        assert self._resumed_from is not None
        for role, part in self._method.parts.items():
            part.load_state_dict(self._files.read(self._resumed_from["parts"][role]))

    def _newest(self) -> dict[str, Any] | None:
        """The newest complete checkpoint of this task; a damaged one is reported, and the one before it used."""
        complete, damaged = [], 0
        for serial in (0, 1):
            path = self._manifest(serial)
            if not path.is_file():
                continue
            try:
                content = self._unsealed(path.read_bytes())
                if content["task"] == self._task:
                    for name in _named(content):
                        self._files.read(name)
                    complete.append(content)
            except UNREADABLE:
                damaged += 1
        newest = max(complete, key=lambda content: content["serial"], default=None)
        if damaged:
            instead = "the one before it is used" if newest else "the task starts again"
            self._print_line(f"a checkpoint in '{self._folder}' is damaged: {instead}.")
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
        """Delete the files that neither manifest names."""
        named: set[str] = set()
        for serial in (0, 1):
            try:
                named |= _named(self._unsealed(self._manifest(serial).read_bytes()))
            except UNREADABLE:
                continue
        self._files.remove_all_but(named)


def _named(content: dict[str, Any]) -> set[str]:
    """The tensor files that a manifest needs."""
    return {*content["parts"].values(), *filter(None, content["results"])}
