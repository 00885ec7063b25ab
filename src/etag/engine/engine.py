"""The engine: does the work that methods yield. What it means is the methods' business."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import torch
from torch import Tensor

from etag.core.errors import EtagError
from etag.core.work import Callback, Checkpointer, DataPass, Phase, Plan
from etag.engine.runtime import Runtime
from etag.engine.training import LOG_EVERY, Training


class Engine:
    """Trains phases and runs sweeps, on whatever the runtime offers, and tells the listeners."""

    def __init__(self, runtime: Runtime, callbacks: Sequence[Callback] = ()) -> None:
        self.runtime = runtime
        self._listeners = callbacks if runtime.leader else ()

    def execute(self, plan: Plan, checkpointer: Checkpointer | None = None) -> None:
        """Do all of a method's work for a task, sending each sweep's result back to it. What the journal knows to be
        done is not done again."""
        result: dict[str, Tensor] | None = None
        for number in count():
            try:
                work = plan.send(result)
            except StopIteration:
                return
            if checkpointer is not None and checkpointer.done(number):
                result = checkpointer.result(number)
                continue
            if isinstance(work, DataPass):
                result = self.run_pass(work)
            else:
                self.train(work, checkpointer)
                result = {}
            if checkpointer is not None:
                checkpointer.finish(work.name, result)

    def train(self, phase: Phase, checkpointer: Checkpointer | None = None) -> None:
        """Train a phase to its end."""
        training = Training(phase, self.runtime, self._listeners)
        try:
            with self._reported(phase.name, phase.steps, training.epochs):
                training.run(checkpointer)
        except (RuntimeError, MemoryError) as error:
            if not (isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error)):
                raise
            size = phase.training.batch_size
            raise EtagError(
                f"there is not enough memory for phase '{phase.name}' with batches of {size}: try a batch_size of "
                f"{max(1, size // 2)}."
            ) from error

    def run_pass(self, data_pass: DataPass) -> dict[str, Tensor]:
        """Run a pass and put together what all processes found."""
        data_pass.module.eval()
        steps = data_pass.epochs * len(data_pass.batches)
        with self._reported(data_pass.name, steps, data_pass.epochs), torch.set_grad_enabled(data_pass.gradients):
            if data_pass.reduce == "concat":
                found = self.runtime.gather_rows(list(self._visits(data_pass, steps)))
                return {name: torch.cat([entry[name] for entry in found]) for name in found[0]}
            total: dict[str, Tensor] = {}
            for entry in self._visits(data_pass, steps):
                total = {name: value + total[name] if total else value for name, value in entry.items()}
            return {name: self.runtime.sum(value) for name, value in total.items()}

    def _visits(self, data_pass: DataPass, steps: int) -> Iterator[dict[str, Tensor]]:
        done = rows = 0
        for epoch in range(data_pass.epochs):
            for batch in data_pass.batches.epoch(epoch):
                with self.runtime.fabric.autocast():
                    found = {name: value.detach() for name, value in data_pass.module(batch).items()}
                yield found
                done, rows = done + 1, rows + batch.total
                if done % LOG_EVERY == 0 or done == steps:
                    for callback in self._listeners:
                        callback.on_step(done, epoch, 0.0, {}, rows)
                    rows = 0

    @contextmanager
    def _reported(self, name: str, steps: int, epochs: int) -> Iterator[None]:
        for callback in self._listeners:
            callback.on_phase_begin(name, steps, epochs)
        start = time.perf_counter()
        yield
        for callback in self._listeners:
            callback.on_phase_end(name, time.perf_counter() - start)
