"""How far a lesson is and how long it will still take, in words for people."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars

from etag.core.text import duration, printable
from etag.core.work import Callback

PLAIN_SECONDS = 30.0  # between two lines where there is no terminal
REPORTED_EVERY = 10  # steps, by the engine
UNDER = 60.0  # seconds: of so short a lesson nobody needs to know more


@dataclass(frozen=True)
class Progress:
    """How far a lesson is."""

    done: float  # share of its time, from 0 to 1
    seconds_left: float
    phase: str  # what is being done, as the step log calls it
    detail: str  # step, speed and loss terms
    accuracy: float | None  # on the training images of the last steps; None where nothing is trained

    def __str__(self) -> str:
        right = "" if self.accuracy is None else f", {self.accuracy:.0%} of the last training images right"
        return f"{self.done:.0%}, {time_left(self.seconds_left)} left{right}"


def time_left(seconds: float) -> str:
    """An expected time in words."""
    return "under a minute" if seconds < UNDER else f"about {duration(seconds)}"


class ProgressListener(Callback):
    """A callback that is also told how far a lesson is."""

    def tell(self, progress: Progress) -> None:
        """Receive it; called every few steps."""


class LessonProgress(Callback):
    """Tells listeners how far a lesson is. `work` names its phases and passes in order, with the seconds that each
    should take; while the lesson runs, these are corrected by how long it really takes."""

    def __init__(self, work: Sequence[tuple[str, float]], listeners: Sequence[ProgressListener]) -> None:
        self._work, self._listeners = work, listeners
        self._place = -1  # of the current phase or pass in `work`
        self._measured = self._foreseen = 0.0  # seconds that the finished work took, and that it should have taken
        self._phase, self._steps, self._skipped = "", 1, 0  # steps that were made before an interruption
        self._began = self._last = time.perf_counter()  # of the current phase; the last report
        self._done = 0.0
        self._accuracy: float | None = None

    def on_phase_begin(self, name: str, steps: int, epochs: int) -> None:  # noqa: ARG002
        """Find it in the list. What comes before it was finished before an interruption."""
        self._phase, self._steps, self._skipped, self._accuracy = name, steps, -1, None
        self._began = self._last = time.perf_counter()
        places = (place for place in range(self._place + 1, len(self._work)) if self._work[place][0] == name)
        self._place = next(places, self._place)

    def on_accuracy(self, accuracy: float) -> None:
        """Remember the accuracy of the last steps."""
        self._accuracy = accuracy

    def on_step(self, step: int, epoch: int, lr: float, terms: Mapping[str, float], rows: int) -> None:  # noqa: ARG002
        """Estimate the rest, and tell the listeners."""
        now = time.perf_counter()
        if self._skipped < 0:  # the first report of a resumed phase tells where it was resumed
            self._skipped = max(0, step - REPORTED_EVERY)
        losses = "  ".join(f"{name} {value:.3f}" for name, value in terms.items())
        speed = rows / max(now - self._last, 1e-9)
        detail = f"{self._phase}  step {step:,}/{self._steps:,}  {speed:,.0f} images/s  {losses}".rstrip()
        self._last = now
        elapsed = now - self._began
        left = elapsed * (self._steps - step) / (step - self._skipped) + self._later(elapsed, step)
        before = elapsed + sum(seconds for _, seconds in self._work[: max(0, self._place)])
        self._done = max(self._done, min(0.99, before / (before + left)))
        for listener in self._listeners:
            listener.tell(Progress(self._done, left, self._phase, detail, self._accuracy))

    def on_phase_end(self, name: str, seconds: float) -> None:
        """Count how long it took, and how long it should have taken."""
        if self._is_planned(name):
            self._measured += seconds
            self._foreseen += self._share(self._steps)

    def _later(self, elapsed: float, step: int) -> float:
        """Seconds of what follows the current phase, if it takes as much longer than foreseen as the work so far."""
        measured, foreseen = self._measured, self._foreseen
        if self._is_planned(self._phase):
            measured, foreseen = measured + elapsed, foreseen + self._share(step)
        pace = measured / foreseen if foreseen > 0 else 1.0
        return pace * sum(seconds for _, seconds in self._work[self._place + 1 :])

    def _share(self, step: int) -> float:
        """Seconds that the steps of the current phase which were made now should have taken."""
        return self._work[self._place][1] * (step - max(0, self._skipped)) / self._steps

    def _is_planned(self, phase: str) -> bool:
        return self._place >= 0 and self._work[self._place][0] == phase


class ProgressLine(ProgressListener):
    """A live line on a terminal; with `verbose` a second one for the phase with its loss terms."""

    def __init__(self, console: Console, title: str, verbose: bool) -> None:
        self._title, self._verbose = printable(title), verbose
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[note]}", style="dim", markup=False),
            console=console,
            disable=not console.is_terminal,
        )
        self._line = self._bars.add_task(self._title, total=1, note="")
        self._bars.start()

    def tell(self, progress: Progress) -> None:
        """Move the bar."""
        note = f"{progress}\n  {progress.detail}" if self._verbose else str(progress)
        self._bars.update(self._line, completed=progress.done, note=note)

    def close(self) -> None:
        """Remove the line."""
        self._bars.remove_task(self._line)
        self._bars.stop()


class PlainLines(ProgressListener):
    """A line every 30 seconds, for logs."""

    def __init__(self, print_line: Callable[[str], None], title: str, verbose: bool) -> None:
        self._print_line, self._title, self._verbose = print_line, title, verbose
        self._printed = time.perf_counter()

    def tell(self, progress: Progress) -> None:
        """Print a line if it is time."""
        now = time.perf_counter()
        if now - self._printed >= PLAIN_SECONDS:
            self._printed = now
            self._print_line(f"{self._title}: {progress}" + (f" ({progress.detail})" if self._verbose else ""))


class Forward(ProgressListener):
    """Passes progress on to a function."""

    def __init__(self, receive: Callable[[Progress], None]) -> None:
        self._receive = receive

    def tell(self, progress: Progress) -> None:
        """Call the function."""
        self._receive(progress)
