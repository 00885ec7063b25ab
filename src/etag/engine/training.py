"""The one training loop of the project: a phase from its first step to its last."""

import math
from collections.abc import Sequence

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from etag.core.errors import Diverged
from etag.core.options import TrainOptions
from etag.core.work import Batch, Callback, Checkpointer, OptimizerState, ParameterGroup, Phase, Terms
from etag.engine.runtime import Runtime, compiled
from etag.engine.schedule import Plateau, rate_factor, with_prefix

LOG_EVERY = 10  # steps between two reads of the loss: each read waits for the device


class Training:
    """The training of one phase."""

    def __init__(self, phase: Phase, runtime: Runtime, callbacks: Sequence[Callback]) -> None:
        self.phase, self.runtime, self.fabric = phase, runtime, runtime.fabric
        self.trainers = [_GroupTrainer(group, phase, runtime.fabric) for group in phase.groups]
        self.plateau = Plateau(phase.training, phase.module) if phase.training.schedule == "plateau" else None
        self.log = _TermReader(phase, runtime, callbacks)

    @property
    def epochs(self) -> int:
        """Epochs that are started; a length in steps may end the last one early."""
        return math.ceil(self.phase.steps / len(self.phase.batches))

    def run(self, checkpointer: Checkpointer | None = None) -> None:
        """Train to the end, continuing from a checkpoint if there is one."""
        start = self._load(checkpointer.resume() if checkpointer is not None else {})
        with compiled(self.phase.compilable if self.runtime.options.compile else ()):
            self._run_epochs(start, checkpointer)
        if self.plateau:
            self.plateau.restore()
        self.phase.module.eval()
        for trainer in self.trainers:
            trainer.optimizer.zero_grad()
            trainer.store_state()

    def _run_epochs(self, start: int, checkpointer: Checkpointer | None) -> None:
        per_epoch = len(self.phase.batches)
        for epoch in range(start // per_epoch, self.epochs):
            self._run_epoch(epoch, max(0, start - epoch * per_epoch), checkpointer)
            if self.plateau and not self.plateau.watch(self._watched_loss()):
                return
            self._save_if_due(checkpointer, (epoch + 1) * per_epoch)

    def _run_epoch(self, epoch: int, start: int, checkpointer: Checkpointer | None) -> None:
        _set_mode(self.phase)
        last = len(self.phase.batches) - 1
        for offset, batch in enumerate(self.phase.batches.epoch(epoch, start), start):
            step = epoch * len(self.phase.batches) + offset
            if step == self.phase.steps:
                return
            terms: Terms = {}
            for trainer in self.trainers:
                if step % trainer.group.interval == 0:
                    terms |= self._step(trainer, step, batch)
            self.log.record(step, epoch, self.trainers[0].rate, terms, batch.total)
            if offset < last:  # after the last batch, `_run_epochs` saves after updating the plateau schedule
                self._save_if_due(checkpointer, step + 1)

    def _save_if_due(self, checkpointer: Checkpointer | None, step: int) -> None:
        """Save if a checkpoint is due and all steps so far have been reported to the callbacks."""
        if checkpointer is not None and self.log.all_read and checkpointer.due(step):
            checkpointer.save(self.phase.name, self._state(step))

    def _state(self, step: int) -> dict[str, Tensor]:
        """What resuming after `step` steps needs besides the method's own state."""
        state = {"step": torch.tensor(step), "log.losses": self.log.losses}
        for number, trainer in enumerate(self.trainers):
            for index, values in trainer.state().items():
                state |= {f"optimizer.{number}.{index}.{key}": value for key, value in values.items()}
        if self.plateau:
            state |= {f"plateau.{name}": value for name, value in self.plateau.state().items()}
        scaler = self.fabric.strategy.precision.state_dict()
        return state | {f"scaler.{name}": torch.tensor(value) for name, value in scaler.items()}

    def _load(self, state: dict[str, Tensor]) -> int:
        """Restore a state, or begin without one; returns its number of steps."""
        if not state:
            self.fabric.strategy.precision.load_state_dict(self.runtime.first_scale)
            return 0
        for number, trainer in enumerate(self.trainers):
            trainer.load(_by_index(with_prefix(state, f"optimizer.{number}.")))
        if self.plateau:
            self.plateau.load(with_prefix(state, "plateau."))
        self.log.losses = state["log.losses"]
        if scaler := with_prefix(state, "scaler."):
            self.fabric.strategy.precision.load_state_dict({name: value.item() for name, value in scaler.items()})
        return int(state["step"])

    def _step(self, trainer: "_GroupTrainer", step: int, batch: Batch) -> Terms:
        """One optimizer step of one parameter group; returns its loss terms."""
        several = len(self.trainers) > 1
        if several:
            _set_trainable(self.phase.module, trainer.group)
        terms: Terms = trainer.module(batch, group=trainer.group.name) if several else trainer.module(batch)
        factor = rate_factor(trainer.training, step, len(self.phase.batches), self.phase.steps)
        trainer.set_rate(trainer.training.lr * factor * (self.plateau.factor if self.plateau else 1.0))
        trainer.optimizer.zero_grad()
        self.fabric.backward(_total(terms))
        if trainer.training.clip_norm is not None:
            self.fabric.clip_gradients(trainer.module, trainer.optimizer, max_norm=trainer.training.clip_norm)
        if trainer.training.clip_value is not None:
            self.fabric.clip_gradients(trainer.module, trainer.optimizer, clip_val=trainer.training.clip_value)
        trainer.optimizer.step()
        return {f"{trainer.group.name}.{name}": value for name, value in terms.items()} if several else terms

    @torch.no_grad()
    def _watched_loss(self) -> float:
        """Mean loss on the validation batches; without any, over the last epoch."""
        if self.phase.validation is None:
            return self.log.epoch_loss()
        module = self.phase.module.eval()  # not its DDP wrapper, which would hang where a process has no rows
        summed = torch.zeros(2, device=self.fabric.device)
        for batch in self.phase.validation.epoch(0):
            if rows := len(batch.labels):
                with self.fabric.autocast():
                    summed += torch.stack([_total(module(batch)) * rows, torch.full((), rows, device=summed.device)])
        total, rows = self.runtime.sum(summed).tolist()
        return float(total / rows)


def _total(terms: Terms) -> Tensor:
    return torch.stack(list(terms.values())).sum()


class _GroupTrainer:
    """A parameter group with its optimizer, and the module as the runtime wraps it for this group. DDP waits for the
    gradients of the parameters that train, which differ from group to group."""

    def __init__(self, group: ParameterGroup, phase: Phase, fabric: Fabric) -> None:
        self.group, self.training = group, group.training or phase.training
        _set_trainable(phase.module, group)
        # a fused step is one pass over the weights; it does not work with the gradient scaler of 16-mixed
        scales_gradients = bool(fabric.strategy.precision.state_dict())
        optimizer = _optimizer(group.parameters, self.training, fused=not scales_gradients)
        self.module, self.optimizer = fabric.setup(phase.module, optimizer)
        self.rate = self.training.lr
        names = {id(parameter): name for name, parameter in phase.module.named_parameters()}
        self._names = [names[id(parameter)] for parameter in group.parameters]
        if group.optimizer_state is not None:
            self.load(dict(enumerate(self._stored(group.optimizer_state))))

    def _stored(self, optimizer_state: OptimizerState) -> list[dict[str, Tensor]]:
        """The stored state of each parameter. SGD wants a momentum for all or for none: new parameters get zeros."""
        known = list(map(optimizer_state.state_of, self._names, self.group.parameters))
        if any("momentum_buffer" in values for values in known):
            for values, parameter in zip(known, self.group.parameters, strict=True):
                values.setdefault("momentum_buffer", torch.zeros_like(parameter))
        return known

    def state(self) -> dict[int, dict[str, Tensor]]:
        """The optimizer's state by the number of the parameter."""
        return {
            index: {key: torch.as_tensor(value) for key, value in values.items() if value is not None}
            for index, values in self.optimizer.state_dict()["state"].items()
        }

    def load(self, state: dict[int, dict[str, Tensor]]) -> None:
        """Restore such a state; each tensor gets the memory layout of its parameter."""
        for index, values in state.items():
            parameter = self.group.parameters[index]
            for key, value in values.items():
                if value.shape == parameter.shape:
                    values[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        known = {index: values for index, values in state.items() if values}
        self.optimizer.load_state_dict({"state": known, "param_groups": self.optimizer.state_dict()["param_groups"]})

    def store_state(self) -> None:
        """Store the state for the next phase, if it is to be stored."""
        if self.group.optimizer_state is not None:
            for index, values in self.state().items():
                self.group.optimizer_state.store(self._names[index], values)

    def set_rate(self, rate: float) -> None:
        if rate != self.rate:
            self.rate = rate
            for group in self.optimizer.param_groups:
                group["lr"] = rate


def _by_index(state: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Split names of the form `index.key`."""
    by_index: dict[int, dict[str, Tensor]] = {}
    for name, value in state.items():
        index, _, key = name.partition(".")
        by_index.setdefault(int(index), {})[key] = value
    return by_index


def _optimizer(parameters: list[nn.Parameter], training: TrainOptions, fused: bool) -> Optimizer:
    decay, kernel = training.weight_decay, {"fused": True} if fused else {"foreach": True}
    if training.optimizer == "sgd":
        return SGD(parameters, training.lr, momentum=training.momentum, weight_decay=decay, **kernel)
    return Adam(parameters, training.lr, betas=training.betas, weight_decay=decay, **kernel)


class _TermReader:
    """Collects the loss terms on the device and reads them every few steps."""

    def __init__(self, phase: Phase, runtime: Runtime, callbacks: Sequence[Callback]) -> None:
        self._phase, self._runtime, self._callbacks = phase, runtime, callbacks
        self._unread: list[tuple[int, Terms]] = []
        self._rows = 0
        self.losses = torch.empty(0)  # of this epoch, for the plateau schedule; mean over all processes

    def record(self, step: int, epoch: int, rate: float, terms: Terms, rows: int) -> None:
        terms = {name: value.detach() for name, value in terms.items()}
        self._unread.append((step + 1, terms))
        self._rows += rows
        if self._phase.training.schedule == "plateau":
            loss = self._runtime.sum(_total(terms).reshape(1)) / self._runtime.placement.world
            self.losses = torch.cat([self.losses.to(loss), loss])
        if (step + 1) % LOG_EVERY == 0 or step + 1 == self._phase.steps:
            read, accuracy = self._read(), self._phase.accuracy()
            for callback in self._callbacks:
                if accuracy is not None:
                    callback.on_accuracy(accuracy.item())
                callback.on_step(step + 1, epoch, rate, read, self._rows)
            self._rows = 0

    def _read(self) -> dict[str, float]:
        """The terms of the last step; all steps since the previous read are checked for NaN and infinity."""
        values = iter(torch.stack([value for _, terms in self._unread for value in terms.values()]).tolist())
        read: dict[str, float] = {}
        for step, terms in self._unread:
            read = {name: next(values) for name in terms}
            for name, value in read.items():
                if not math.isfinite(value):
                    raise Diverged(
                        f"the loss term '{name}' became {value} at step {step} of phase '{self._phase.name}'. Lower "
                        "train.lr, or set train.clip_norm."
                    )
        self._unread.clear()
        return read

    def epoch_loss(self) -> float:
        """Mean loss of the epoch that just ended."""
        losses, self.losses = self.losses, torch.empty(0)
        return losses.mean().item()

    @property
    def all_read(self) -> bool:
        """Whether every step so far has been reported to the callbacks."""
        return not self._unread


def _set_trainable(module: nn.Module, group: ParameterGroup) -> None:
    wanted = {id(parameter) for parameter in group.parameters}
    for parameter in module.parameters():
        parameter.requires_grad_(id(parameter) in wanted)


def _set_mode(phase: Phase) -> None:
    phase.module.train()
    if phase.batch_norm == "frozen":
        for part in phase.module.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.eval()
