"""Callbacks of the project: progress bars, the log of steps, TensorBoard."""

import json
import os
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from etag.core.errors import EtagError
from etag.core.evaluation import Evaluation
from etag.core.files import write_atomically, write_error
from etag.core.scenario import Task
from etag.core.text import duration, printable
from etag.core.work import Callback

MAX_LINE = 1 << 16  # bytes of a line of the log


class _PhaseCallback(Callback):
    """Knows the current phase and measures the speed."""

    def __init__(self) -> None:
        self._phase, self._since = "", time.perf_counter()

    def on_phase_begin(self, name: str, steps: int, epochs: int) -> None:  # noqa: ARG002
        """Remember the phase."""
        self._phase, self._since = name, time.perf_counter()

    def _speed(self, rows: int) -> float:
        """Images per second since the previous call."""
        now = time.perf_counter()
        speed, self._since = rows / max(now - self._since, 1e-9), now
        return speed


class StepLog(_PhaseCallback):
    """Writes one JSON object per line: task, phase, step, loss terms and speed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file: TextIO | None = None  # open while a task is learned
        self._task = 0

    def on_task_begin(self, task: Task, saved_steps: Mapping[str, int | None]) -> None:
        """Remember the task, and drop the lines of steps that will be repeated. A log that is damaged or incomplete is
        reported on standard error."""
        self._task = task.index
        self.close()
        if problem := _cut(self._path, task.index, saved_steps):
            print(f"the log {printable(str(self._path))} {problem}.", file=sys.stderr)
        # line by line, so that none is lost when the process is killed
        self._file = self._path.open("a", buffering=1)

    def on_step(self, step: int, epoch: int, lr: float, terms: Mapping[str, float], rows: int) -> None:
        """Write a line; data passes have no loss and are not logged."""
        speed = self._speed(rows)
        if terms and self._file is not None:
            line = {"task": self._task, "phase": self._phase, "step": step, "epoch": epoch, "lr": lr}
            line |= {"terms": dict(terms), "images_per_second": round(speed, 1)}
            with write_error(self._path):
                self._file.write(json.dumps(line) + "\n")

    def on_phase_end(self, name: str, seconds: float) -> None:  # noqa: ARG002
        """Make the lines of the phase safe from a power cut, before a checkpoint says that the phase is done."""
        if self._file is not None:
            with write_error(self._path):
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with write_error(self._path):
                self._file.close()


def _cut(path: Path, task: int, saved_steps: Mapping[str, int | None]) -> str:
    """Keep only the lines of earlier tasks and of saved steps; the others will be written again. Returns what was wrong
    with the log, or an empty text."""
    if not os.path.lexists(path):
        return ""
    if not stat.S_ISREG(path.lstat().st_mode):  # a link may lead anywhere, and a pipe is never read to its end
        path.unlink()
        return "was not a file, and is begun again"
    kept, damaged, logged = [], False, dict.fromkeys(saved_steps, 0)
    with path.open("rb") as file:
        for raw in iter(lambda: file.readline(MAX_LINE), b""):
            if (position := _position(raw)) is None:
                damaged = True
                continue
            own_task, phase, step = position
            saved = saved_steps.get(phase, 0)  # None: the whole phase
            if own_task > task or (own_task == task and saved is not None and step > saved):
                continue
            kept.append(raw)
            if own_task == task:
                logged[phase] = step
    write_atomically(path, b"".join(kept))
    if damaged:
        return "was damaged: what could not be read of it is removed"
    return "lacks steps that were saved" if any(logged[key] < (saved_steps[key] or 0) for key in saved_steps) else ""


def _position(line: bytes) -> tuple[int, str, int] | None:
    """Task, phase and step of a line; None if it is not a line of the log, or not a whole one."""
    try:
        values: Any = json.loads(line.decode()) if line.endswith(b"\n") else {}
        task, phase, step = values["task"], values["phase"], values["step"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return (task, phase, step) if type(task) is type(step) is int and isinstance(phase, str) else None


class TensorBoardLog(_PhaseCallback):
    """Logs loss terms, learning rate and speed per step (counted on from task to task), and accuracies per task."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise EtagError(
                "the callback tensorboard needs the package tensorboard: pip install tensorboard."
            ) from error
        super().__init__()
        self._writer = SummaryWriter(str(folder))
        self._before: dict[str, int] = {}  # steps of each phase in earlier tasks
        self._last: dict[str, int] = {}

    def on_task_begin(self, task: Task, saved_steps: Mapping[str, int | None]) -> None:  # noqa: ARG002
        """Continue the step count of the previous task."""
        self._before = dict(self._last)

    def on_step(self, step: int, epoch: int, lr: float, terms: Mapping[str, float], rows: int) -> None:  # noqa: ARG002
        """Log the values of a phase; data passes have none."""
        speed = self._speed(rows)
        if not terms:
            return
        at = self._last[self._phase] = self._before.get(self._phase, 0) + step
        for name, value in (dict(terms) | {"lr": lr, "images_per_second": speed}).items():
            self._writer.add_scalar(f"{self._phase}/{name}", value, at)

    def on_phase_end(self, name: str, seconds: float) -> None:  # noqa: ARG002
        """Flush, so that readers see the whole phase."""
        self._writer.flush()

    def on_evaluation(self, task: Task, evaluation: Evaluation) -> None:
        """Log the accuracy over all evaluated images, and on each evaluated task."""
        self._writer.add_scalar("accuracy/all classes", evaluation.accuracy, task.index + 1)
        first = task.index + 1 - len(evaluation.accuracies)
        for number, accuracy in enumerate(evaluation.accuracies, start=first + 1):
            self._writer.add_scalar(f"accuracy/task {number}", accuracy, task.index + 1)
        self._writer.flush()

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()


class ProgressBars(_PhaseCallback):
    """Two live lines on a terminal: the whole work with the time left, the phase with speed and loss terms. The time
    left is estimated from the numbers of training images of all tasks."""

    def __init__(self, console: Console, title: str, images: Sequence[int]) -> None:
        super().__init__()
        self._images = images
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[note]}", style="dim", markup=False),
            console=console,
            disable=not console.is_terminal,
        )
        self._title = printable(title)
        self._run: TaskID = self._bars.add_task(self._title, total=sum(images), note="")
        self._phase_bar: TaskID = self._bars.add_task("", total=1, note="")
        self._task, self._phases = 0, 0  # number of the task, phases begun in it
        self._steps, self._epochs = 1, 1
        self._began = self._task_began = time.perf_counter()
        self._per_image: float | None = None  # seconds, from the last finished task
        self._bars.start()

    def on_task_begin(self, task: Task, saved_steps: Mapping[str, int | None]) -> None:  # noqa: ARG002
        """Move the first bar to the new task."""
        now, index = time.perf_counter(), min(task.index, len(self._images) - 1)
        if self._phases:  # not the first task that is seen
            self._per_image = (now - self._task_began) / self._images[index - 1]
        self._task, self._phases, self._task_began = index, 0, now
        name = self._title if len(self._images) == 1 else f"{self._title}  task {index + 1}/{len(self._images)}"
        self._bars.update(self._run, completed=sum(self._images[:index]), description=name)

    def on_phase_begin(self, name: str, steps: int, epochs: int) -> None:
        """Restart the second bar."""
        self._phases, self._steps, self._epochs = self._phases + 1, steps, epochs
        super().on_phase_begin(name, steps, epochs)
        self._began = time.perf_counter()
        self._bars.reset(self._phase_bar, total=steps, description=f"  {name}", note="")

    def on_step(self, step: int, epoch: int, lr: float, terms: Mapping[str, float], rows: int) -> None:  # noqa: ARG002
        """Move the bars."""
        now, speed = time.perf_counter(), self._speed(rows)
        losses = "  ".join(f"{name} {value:.3f}" for name, value in terms.items())
        note = f"epoch {epoch + 1}/{self._epochs}  {speed:,.0f} images/s  {losses}"
        self._bars.update(self._phase_bar, completed=step, note=note)
        # the first phase of a task, the solver's, takes nearly all of its time
        part = step / self._steps if self._phases == 1 else 1.0
        images_done = sum(self._images[: self._task]) + part * self._images[self._task]
        self._bars.update(self._run, completed=images_done, note=f"about {duration(self._time_left(now, step))} left")

    def _time_left(self, now: float, step: int) -> float:
        phase = (now - self._began) * (self._steps - step) / step
        task_total = now - self._task_began + phase
        per_image = self._per_image or task_total / self._images[self._task]
        return phase + per_image * sum(self._images[self._task + 1 :])

    def close(self) -> None:
        """Remove the bars."""
        self._bars.remove_task(self._phase_bar)
        self._bars.remove_task(self._run)
        self._bars.stop()
