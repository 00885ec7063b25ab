"""The one training loop. It trains phases and runs sweeps; what they mean is the methods' business."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from etag.core.errors import EtagError
from etag.core.options import TrainOptions
from etag.core.work import Batch, Batches, Listener, Phase, Plan, Player, Sweep, Terms
from etag.engine.runtime import Runtime
from etag.engine.schedule import Plateau, rate_factor

LOG_EVERY = 10  # steps between two reads of the loss: each read waits for the device


class Engine:
    """Owns the step: gradients, precision, clipping, optimiser, schedule, BatchNorm mode, progress."""

    def __init__(self, runtime: Runtime, listeners: Sequence[Listener] = ()) -> None:
        self.runtime = runtime
        self._listeners = listeners if runtime.leader else ()

    def execute(self, plan: Plan) -> None:
        """Do all of a method's work for a task, sending each sweep's result back."""
        result: dict[str, Tensor] | None = None
        while True:
            try:
                work = plan.send(result)
            except StopIteration:
                return
            result = self.sweep(work) if isinstance(work, Sweep) else self.train(work)

    # -- phases ---------------------------------------------------------------------------------------------------

    def train(self, phase: Phase) -> None:
        """Train a phase to its end."""
        _set_trainable(phase)
        turns = [_Turn(player, phase) for player in phase.players]
        module, *optimisers = self.runtime.fabric.setup(phase.module, *(turn.optimiser for turn in turns))
        for turn, optimiser in zip(turns, optimisers, strict=True):
            turn.optimiser = optimiser
        plateau = Plateau(phase.training, phase.module) if phase.training.schedule == "plateau" else None
        log = _StepLog(self._listeners, phase)
        with self._reported(phase.name, phase.steps, math.ceil(phase.steps / len(phase.batches))):
            for epoch in range(math.ceil(phase.steps / len(phase.batches))):
                self._epoch(phase, epoch, module, turns, log, plateau)
                if plateau and not plateau.watch(self._watched_loss(phase, module, log)):
                    break
            if plateau:
                plateau.restore()
        module.eval()
        for turn in turns:
            turn.optimiser.zero_grad()

    def _epoch(
        self,
        phase: Phase,
        epoch: int,
        module: nn.Module,
        turns: "list[_Turn]",
        log: "_StepLog",
        plateau: Plateau | None,
    ) -> None:
        _set_mode(module, phase)
        per_epoch, several = len(phase.batches), len(turns) > 1
        for offset, batch in enumerate(phase.batches.epoch(epoch)):
            step = epoch * per_epoch + offset
            if step == phase.steps:
                return
            terms: Terms = {}
            for turn in turns:
                if step % turn.player.every == 0:
                    scale = plateau.factor if plateau else 1.0
                    rate = scale * rate_factor(turn.training, step, per_epoch, phase.steps)
                    named = module(batch, player=turn.player.name) if several else module(batch)
                    self._update(module, turn, named, rate * turn.training.lr)
                    terms |= {f"{turn.player.name}.{k}" if several else k: v for k, v in named.items()}
            log.note(step, epoch, turns[0].rate, terms, batch.total)

    def _update(self, module: nn.Module, turn: "_Turn", terms: Terms, rate: float) -> None:
        turn.set_rate(rate)
        turn.optimiser.zero_grad()
        self.runtime.fabric.backward(torch.stack(list(terms.values())).sum())
        clip: dict[str, Any] = {"max_norm": turn.training.clip_norm, "clip_val": turn.training.clip_value}
        if any(limit is not None for limit in clip.values()):
            self.runtime.fabric.clip_gradients(module, turn.optimiser, **clip)
        turn.optimiser.step()

    @torch.no_grad()
    def _watched_loss(self, phase: Phase, module: nn.Module, log: "_StepLog") -> float:
        """Mean loss on the validation batches; without any, over the epoch just trained."""
        if phase.validation is None:
            return log.epoch_loss()
        module.eval()
        summed = torch.zeros(2, device=self.runtime.fabric.device)
        for batch in phase.validation.epoch(0):
            if len(batch.labels):
                loss = torch.stack(list(module(batch).values())).sum()
                summed += torch.stack([loss * len(batch.labels), torch.full_like(loss, len(batch.labels))])
        total, rows = self.runtime.sum(summed).tolist()
        return float(total / rows)

    # -- sweeps ---------------------------------------------------------------------------------------------------

    def sweep(self, sweep: Sweep) -> dict[str, Tensor]:
        """Run a pass and put together what all processes found."""
        sweep.module.eval()
        results: list[dict[str, Tensor]] = []
        steps, since = sweep.epochs * len(sweep.batches), 0
        with self._reported(sweep.name, steps, sweep.epochs), torch.set_grad_enabled(sweep.gradients):
            for step, batch in enumerate(_batches(sweep.batches, sweep.epochs), start=1):
                with self.runtime.fabric.autocast():
                    found = {name: value.detach() for name, value in sweep.module(batch).items()}
                if sweep.reduce == "sum" and results:
                    found = {name: value + results.pop()[name] for name, value in found.items()}
                results.append(found)
                since += batch.total
                if step % LOG_EVERY == 0 or step == steps:
                    for listener in self._listeners:
                        listener.stepped(step, (step - 1) // len(sweep.batches), 0.0, {}, since)
                    since = 0
        if sweep.reduce == "sum":
            return {name: self.runtime.sum(value) for name, value in results[0].items()}
        gathered = self.runtime.gather_rows(results)
        return {name: torch.cat([entry[name] for entry in gathered]) for name in gathered[0]}

    @contextmanager
    def _reported(self, name: str, steps: int, epochs: int) -> Iterator[None]:
        for listener in self._listeners:
            listener.started(name, steps, epochs)
        start = time.perf_counter()
        yield
        for listener in self._listeners:
            listener.finished(name, time.perf_counter() - start)


def _batches(batches: Batches, epochs: int) -> Iterator[Batch]:
    for epoch in range(epochs):
        yield from batches.epoch(epoch)


class _Turn:
    """A player with its optimiser."""

    def __init__(self, player: Player, phase: Phase) -> None:
        self.player, self.training = player, player.training or phase.training
        self.optimiser: Optimizer = _optimiser(player.parameters, self.training)
        self.rate = self.training.lr

    def set_rate(self, rate: float) -> None:
        if rate != self.rate:
            self.rate = rate
            for group in self.optimiser.param_groups:
                group["lr"] = rate


def _optimiser(parameters: list[nn.Parameter], training: TrainOptions) -> Optimizer:
    if training.optimiser == "sgd":
        return SGD(parameters, training.lr, momentum=training.momentum, weight_decay=training.weight_decay, foreach=True)
    return Adam(parameters, training.lr, betas=training.betas, weight_decay=training.weight_decay, foreach=True)


class _StepLog:
    """Keeps the terms on the device and reads them every few steps."""

    def __init__(self, listeners: Sequence[Listener], phase: Phase) -> None:
        self._listeners, self._phase = listeners, phase
        self._rows = 0
        self._losses: list[Tensor] = []

    def note(self, step: int, epoch: int, rate: float, terms: Terms, rows: int) -> None:
        self._rows += rows
        values = torch.stack([value.detach() for value in terms.values()])
        if self._phase.training.schedule == "plateau":
            self._losses.append(values.sum())
        if (step + 1) % LOG_EVERY and step + 1 < self._phase.steps:
            return
        read = dict(zip(terms, values.tolist(), strict=True))
        for name, value in read.items():
            if not math.isfinite(value):
                raise EtagError(
                    f"the loss term '{name}' became {value} at step {step + 1} of phase '{self._phase.name}': "
                    "lower the learning rate, or set train.clip_norm."
                )
        for listener in self._listeners:
            listener.stepped(step + 1, epoch, rate, read, self._rows)
        self._rows = 0

    def epoch_loss(self) -> float:
        """Mean loss of the epoch just ended."""
        losses, self._losses = self._losses, []
        return float(torch.stack(losses).mean())


def _set_trainable(phase: Phase) -> None:
    wanted = {id(parameter) for player in phase.players for parameter in player.parameters}
    for parameter in phase.module.parameters():
        parameter.requires_grad_(id(parameter) in wanted)


def _set_mode(module: nn.Module, phase: Phase) -> None:
    module.train()
    if phase.batch_norm == "frozen":
        for part in module.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.eval()
