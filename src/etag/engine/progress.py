"""What a person sees while a run goes on, and the log of its steps."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from etag.core.errors import EtagError
from etag.core.files import disk_full_error


class _Speed:
    """Images a second since the last look."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._since = time.perf_counter()

    def of(self, rows: int) -> float:
        now = time.perf_counter()
        speed, self._since = rows / max(now - self._since, 1e-9), now
        return speed


class StepLog:
    """One JSON object a line: where the run was, its loss terms, its speed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO = path.open("a", buffering=1)  # a line at a time: a cut run shall know of all of them
        self._task, self._phase, self._speed = 0, "", _Speed()

    def on_task_begin(self, index: int) -> None:
        """The next steps belong to this task."""
        self._task = index

    def on_phase_begin(self, name: str, steps: int, epochs: int) -> None:  # noqa: ARG002
        """A phase or sweep begins."""
        self._phase = name
        self._speed.restart()

    def on_step(self, step: int, epoch: int, lr: float, terms: Mapping[str, float], rows: int) -> None:
        """Write a line, for phases only: sweeps have no loss."""
        speed = self._speed.of(rows)
        if terms:
            line = {"task": self._task, "phase": self._phase, "step": step, "epoch": epoch, "lr": lr}
            line |= {"terms": dict(terms), "images_per_second": round(speed, 1)}
            with disk_full_error(self._path):
                self._file.write(json.dumps(line) + "\n")

    def on_phase_end(self, name: str, seconds: float) -> None:
        """Every line is there already."""

    def close(self) -> None:
        """After the last task."""
        with disk_full_error(self._path):
            self._file.close()


class TensorBoardLog:
    """The loss terms, learning rate and speed as TensorBoard shows them; steps count on over tasks."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise EtagError("runtime.tensorboard needs the package tensorboard: pip install tensorboard.") from error
        self._writer = SummaryWriter(str(folder))
        self._phase, self._speed = "", _Speed()
        self._before: dict[str, int] = {}  # steps of this phase in earlier tasks
        self._last: dict[str, int] = {}

    def on_task_begin(self, index: int) -> None:  # noqa: ARG002
        """Count on where the last task ended."""
        self._before = dict(self._last)

    def on_phase_begin(self, name: str, steps: int, epochs: int) -> None:  # noqa: ARG002
        """A phase or sweep begins."""
        self._phase = name
        self._speed.restart()

    def on_step(self, step: int, epoch: int, lr: float, terms: Mapping[str, float], rows: int) -> None:  # noqa: ARG002
        """Write the values of a phase; sweeps have none."""
        speed = self._speed.of(rows)
        if not terms:
            return
        at = self._last[self._phase] = self._before.get(self._phase, 0) + step
        for name, value in (dict(terms) | {"lr": lr, "images_per_second": speed}).items():
            self._writer.add_scalar(f"{self._phase}/{name}", value, at)

    def on_phase_end(self, name: str, seconds: float) -> None:  # noqa: ARG002
        """Let readers see all of the phase."""
        self._writer.flush()

    def close(self) -> None:
        """After the last task."""
        self._writer.close()


class ProgressBars:
    """Two live lines: the run with the time left, the phase with speed and loss terms. Nothing off a terminal.

    The time left is guessed from the tasks' sizes: `images` counts each task's training images.
    """

    def __init__(self, console: Console, title: str, images: Sequence[int]) -> None:
        self._images = images
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[note]}", style="dim"),
            console=console,
            disable=not console.is_terminal,
        )
        self._title = title
        self._run: TaskID = self._bars.add_task(title, total=sum(images), note="")
        self._phase: TaskID = self._bars.add_task("", total=1, note="")
        self._task, self._phases = 0, 0  # the latter: begun in this task
        self._steps, self._epochs = 1, 1
        self._began = self._task_began = time.perf_counter()
        self._speed = _Speed()
        self._per_image: float | None = None  # seconds, from the last task that was finished
        self._bars.start()

    def on_task_begin(self, index: int) -> None:
        """A new task; the one before it is done."""
        now = time.perf_counter()
        if self._phases:  # not the first one that is seen
            self._per_image = (now - self._task_began) / self._images[index - 1]
        self._task, self._phases, self._task_began = index, 0, now
        name = f"{self._title}  task {index + 1}/{len(self._images)}"
        self._bars.update(self._run, completed=sum(self._images[:index]), description=name)

    def on_phase_begin(self, name: str, steps: int, epochs: int) -> None:
        """A phase or sweep begins."""
        self._phases, self._steps, self._epochs = self._phases + 1, steps, epochs
        self._began = time.perf_counter()
        self._speed.restart()
        self._bars.reset(self._phase, total=steps, description=f"  {name}", note="")

    def on_step(self, step: int, epoch: int, lr: float, terms: Mapping[str, float], rows: int) -> None:  # noqa: ARG002
        """Move the bars."""
        now, speed = time.perf_counter(), self._speed.of(rows)
        said = "  ".join(f"{name} {value:.3f}" for name, value in terms.items())
        note = f"epoch {epoch + 1}/{self._epochs}  {speed:,.0f} images/s  {said}"
        self._bars.update(self._phase, completed=step, note=note)
        # the first phase of a task, the solver's, is nearly all of it
        part = step / self._steps if self._phases == 1 else 1.0
        done = sum(self._images[: self._task]) + part * self._images[self._task]
        self._bars.update(self._run, completed=done, note=f"about {_clock(self._time_left(now, step))} left")

    def _time_left(self, now: float, step: int) -> float:
        phase = (now - self._began) * (self._steps - step) / step
        so_far = now - self._task_began + phase
        per_image = self._per_image or so_far / self._images[self._task]
        return phase + per_image * sum(self._images[self._task + 1 :])

    def on_phase_end(self, name: str, seconds: float) -> None:
        """The phase is over."""

    def close(self) -> None:
        """Take the bars away."""
        self._bars.remove_task(self._phase)
        self._bars.remove_task(self._run)
        self._bars.stop()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
