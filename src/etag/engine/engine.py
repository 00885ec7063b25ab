"""The engine: does the work that methods yield. What it means is the methods' business."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import torch
from torch import Tensor

from etag.core.errors import EtagError
from etag.core.work import Journal, Listener, Phase, Plan, Sweep
from etag.engine.runtime import Runtime
from etag.engine.training import LOG_EVERY, Training


class Engine:
    """Trains phases and runs sweeps, on whatever the runtime offers, and tells the listeners."""

    def __init__(self, runtime: Runtime, listeners: Sequence[Listener] = ()) -> None:
        self.runtime = runtime
        self._listeners = listeners if runtime.leader else ()

    def execute(self, plan: Plan, journal: Journal | None = None) -> None:
        """Do all of a method's work for a task, sending each sweep's result back to it. What the journal knows to be
        done is not done again."""
        result: dict[str, Tensor] | None = None
        for number in count():
            try:
                work = plan.send(result)
            except StopIteration:
                return
            if journal is not None and journal.done(number):
                result = journal.result(number)
                continue
            if isinstance(work, Sweep):
                result = self.sweep(work)
            else:
                self.train(work, journal)
                result = {}
            if journal is not None:
                journal.finish(work.name, result)

    def train(self, phase: Phase, journal: Journal | None = None) -> None:
        """Train a phase to its end."""
        training = Training(phase, self.runtime, self._listeners)
        try:
            with self._reported(phase.name, phase.steps, training.epochs):
                training.run(journal)
        except (RuntimeError, MemoryError) as error:
            if not (isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error)):
                raise
            size = phase.training.batch_size
            raise EtagError(
                f"there is not enough memory for phase '{phase.name}' with batches of {size}: try a batch_size of "
                f"{max(1, size // 2)}."
            ) from error

    def sweep(self, sweep: Sweep) -> dict[str, Tensor]:
        """Run a pass and put together what all processes found."""
        sweep.module.eval()
        steps = sweep.epochs * len(sweep.batches)
        with self._reported(sweep.name, steps, sweep.epochs), torch.set_grad_enabled(sweep.gradients):
            if sweep.reduce == "concat":
                found = self.runtime.gather_rows(list(self._visits(sweep, steps)))
                return {name: torch.cat([entry[name] for entry in found]) for name in found[0]}
            total: dict[str, Tensor] = {}
            for entry in self._visits(sweep, steps):
                total = {name: value + total[name] if total else value for name, value in entry.items()}
            return {name: self.runtime.sum(value) for name, value in total.items()}

    def _visits(self, sweep: Sweep, steps: int) -> Iterator[dict[str, Tensor]]:
        done = rows = 0
        for epoch in range(sweep.epochs):
            for batch in sweep.batches.epoch(epoch):
                with self.runtime.fabric.autocast():
                    found = {name: value.detach() for name, value in sweep.module(batch).items()}
                yield found
                done, rows = done + 1, rows + batch.total
                if done % LOG_EVERY == 0 or done == steps:
                    for listener in self._listeners:
                        listener.stepped(done, epoch, 0.0, {}, rows)
                    rows = 0

    @contextmanager
    def _reported(self, name: str, steps: int, epochs: int) -> Iterator[None]:
        for listener in self._listeners:
            listener.started(name, steps, epochs)
        start = time.perf_counter()
        yield
        for listener in self._listeners:
            listener.finished(name, time.perf_counter() - start)
