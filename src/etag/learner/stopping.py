"""Stopping a learner from outside: by a signal, or from another thread."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """The learner was asked to stop and has saved its progress."""

    def __init__(self, signal_number: int) -> None:
        super().__init__()
        self.exit_code = 128 + signal_number


class Stop:
    """A request to save a checkpoint as soon as possible and stop; a second signal stops at once, without saving. If
    one of several processes gets the signal, `max_over_processes` tells all, so that they stop at the same point."""

    def __init__(self, max_over_processes: Callable[[int], int] = int) -> None:
        self.signal_number, self.max_over_processes = 0, max_over_processes

    def request(self) -> None:
        """Ask the learner to save and stop; may be called from any thread."""
        self.signal_number = self.signal_number or signal.SIGTERM

    @contextmanager
    def on_signals(self, print_line: Callable[[str], None]) -> Iterator[None]:
        """Inside the `with` block, SIGINT and SIGTERM are requests to stop. Only the main thread receives signals: in
        other threads this does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, _: FrameType | None) -> None:
            if self.signal_number:
                raise Interrupted(number)
            self.signal_number = number
            print_line("stopping as soon as the progress is saved; press Ctrl-C again to stop at once.")

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def check(self) -> None:
        """Raise `Interrupted` if the learner was asked to stop. Every process must call it at the same point."""
        if number := self.max_over_processes(self.signal_number):
            raise Interrupted(number)
