"""The engine carries out the work that methods plan. It knows nothing about methods or data."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import torch
from torch import Tensor

from etag.core.errors import EtagError
from etag.core.precision import at_least_single
from etag.core.work import Callback, Checkpointer, DataPass, Phase, PhaseResults, Plan
from etag.engine.runtime import Runtime
from etag.engine.training import LOG_EVERY, Training


class Engine:
    """Trains phases and runs data passes on the devices of a runtime, and reports to callbacks. `check_stop` is called
    regularly during data passes, in every process at the same point; it may raise an exception to interrupt the work.
    (During phases the checkpointer does this.) The first phase of a plan may be `shared` with other runs."""

    def __init__(
        self,
        runtime: Runtime,
        callbacks: Sequence[Callback] = (),
        check_stop: Callable[[], None] = lambda: None,
        shared: PhaseResults | None = None,
    ) -> None:
        self.runtime, self._shared = runtime, shared
        self._callbacks = callbacks if runtime.leader else ()
        self._check_stop = check_stop

    def execute(self, plan: Plan, checkpointer: Checkpointer | None = None) -> None:
        """Carry out a plan, sending it the result of each data pass; skip what was finished before."""
        result: dict[str, Tensor] | None = None
        for number in count():
            try:
                work = plan.send(result)
            except StopIteration:
                return
            if checkpointer is not None and checkpointer.restore_if_finished(number):
                result = checkpointer.result(number)
                continue
            spared = 0.0
            if isinstance(work, DataPass):
                result = self.run_pass(work)
            else:
                # only the first, from its first step: what earlier work did to the method would have to be restored
                if number or self._shared is None or (checkpointer is not None and checkpointer.resumed_at):
                    self.train(work, checkpointer)
                else:
                    spared = self._train_or_load(work, checkpointer, self._shared)
                result = {}
            if checkpointer is not None:
                checkpointer.finish(work.name, result, spared)

    def train(self, phase: Phase, checkpointer: Checkpointer | None = None) -> None:
        """Train a phase to its end."""
        training = Training(phase, self.runtime, self._callbacks)
        try:
            with self._reported(phase.name, phase.steps, training.epochs):
                training.run(checkpointer)
        except (RuntimeError, MemoryError) as error:
            if not (isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error)):
                raise
            size = phase.training.batch_size
            raise EtagError(
                f"there is not enough memory for phase '{phase.name}' with a batch size of {size}: set batch_size to "
                f"{max(1, size // 2)}."
            ) from error

    def _train_or_load(self, phase: Phase, checkpointer: Checkpointer | None, shared: PhaseResults) -> float:
        """Train a phase, or load its result if another run has trained it; returns the seconds that this spares, less
        those of waiting for the other run."""
        before = time.perf_counter()
        with shared.result(phase) as known:
            start = time.perf_counter()
            trained = None if known is None else known.load()
            if trained is None:
                self.train(phase, checkpointer)
                if known is not None:
                    known.save(time.perf_counter() - start)
            else:
                training = Training(phase, self.runtime, ())  # freezes what training would have frozen
                with self._reported(phase.name, phase.steps, training.epochs):
                    phase.module.eval()
        return (trained or 0.0) - (start - before)

    def run_pass(self, data_pass: DataPass) -> dict[str, Tensor]:
        """Run a data pass; returns the result over all processes."""
        data_pass.module.eval()
        steps = data_pass.epochs * len(data_pass.batches)
        with self._reported(data_pass.name, steps, data_pass.epochs):
            if data_pass.reduce == "concat":
                results = self.runtime.gather(list(self._results(data_pass, steps)))
                return {name: torch.cat([entry[name] for entry in results]) for name in results[0]}
            total: dict[str, Tensor] = {}
            for entry in self._results(data_pass, steps):
                add = bool(total) and data_pass.reduce == "sum"
                total = {name: value + total[name] if add else value for name, value in entry.items()}
            return {name: self.runtime.sum(value) for name, value in total.items()}

    def stream(self, data_pass: DataPass) -> Iterator[dict[str, Tensor]]:
        """Run a data pass; yields the result of each batch over all processes as soon as it is computed."""
        data_pass.module.eval()
        steps = data_pass.epochs * len(data_pass.batches)
        with self._reported(data_pass.name, steps, data_pass.epochs):
            for entry in self._results(data_pass, steps):
                yield self.runtime.gather([entry])[0]

    def _results(self, data_pass: DataPass, steps: int) -> Iterator[dict[str, Tensor]]:
        done = rows = 0
        for epoch in range(data_pass.epochs):
            for batch in data_pass.batches.epoch(epoch):
                with torch.set_grad_enabled(data_pass.gradients), self.runtime.fabric.autocast():
                    result = {name: at_least_single(value.detach()) for name, value in data_pass.module(batch).items()}
                yield result
                done, rows = done + 1, rows + batch.total
                if done % LOG_EVERY == 0 or done == steps:
                    self._check_stop()
                    for callback in self._callbacks:
                        callback.on_step(done, epoch, 0.0, {}, rows)
                    rows = 0

    @contextmanager
    def _reported(self, name: str, steps: int, epochs: int) -> Iterator[None]:
        for callback in self._callbacks:
            callback.on_phase_begin(name, steps, epochs)
        start = time.perf_counter()
        yield
        for callback in self._callbacks:
            callback.on_phase_end(name, time.perf_counter() - start)
