"""The units of work that a method plans and the engine carries out: phases to train, passes over data."""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from etag.core.evaluation import Evaluation
from etag.core.options import TrainOptions
from etag.core.outputs import Need, Outputs, Views
from etag.core.random import Draws
from etag.core.scenario import Task


class Batch:
    """The input of one step in one process: its rows of the global batch, and the random draws of the step. Not a
    dataclass: Fabric copies dataclasses field by field on their way into a module."""

    __slots__ = ("draws", "inputs", "labels", "total")

    def __init__(self, inputs: Tensor, labels: Tensor, draws: Draws, total: int) -> None:
        self.inputs = inputs  # normalized images, or features
        self.labels = labels
        self.draws = draws
        self.total = total  # rows of the global batch, over all processes


class Batches(Protocol):
    """A source of batches that can start at any epoch and always yields the same batches for it."""

    def __len__(self) -> int:
        """Steps per epoch."""

    def epoch(self, index: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, starting with batch number `start`."""


Terms = dict[str, Tensor]  # named and weighted; their sum is the loss


@dataclass(frozen=True)
class StepData:
    """What a loss term may use: the batch, its views, and the outputs of student and teacher."""

    batch: Batch
    views: Views
    student: Outputs
    teacher: Outputs


@dataclass(frozen=True)
class Term:
    """One loss term: a pure function, its weight, and which outputs it needs from student and teacher."""

    name: str
    compute: Callable[[StepData], Tensor]
    weight: float = 1.0
    student_need: Need = Need.NOTHING
    teacher_need: Need = Need.NOTHING
    second_order: bool = False  # whether it differentiates a gradient
    identity: str | None = None  # what it computes, if that depends on nothing but the solver and the batch


class OptimizerState(nn.Module):
    """The state of an optimizer, stored from one phase to the next by the names of parameters in the phase's module. A
    parameter that has gained rows keeps the state of its old rows; new rows start at zero."""

    def state_of(self, name: str, parameter: nn.Parameter) -> dict[str, Tensor]:
        """The stored state of a parameter by key; empty for a new parameter."""
        prefix, state = _buffer_name(name, ""), {}
        for key, value in self.named_buffers():
            if key.startswith(prefix):
                added = len(parameter) - len(value) if value.ndim else 0
                grown = torch.cat([value, value.new_zeros(added, *value.shape[1:])]) if added else value
                state[key.removeprefix(prefix)] = grown
        return state

    def store(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Store a copy of the state of a parameter."""
        for key, value in state.items():
            self.register_buffer(_buffer_name(name, key), value.detach().clone())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for key, value in state_dict.items():
            if key.startswith(prefix):
                self.register_buffer(key.removeprefix(prefix), value.clone())
        super()._load_from_state_dict(state_dict, prefix, *args)


def _buffer_name(parameter: str, key: str) -> str:
    """A valid buffer name: dots are reserved for submodules."""
    return f"{parameter}:{key}".replace(".", "/")


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that one optimizer updates. A GAN phase has two groups; most phases have one."""

    parameters: list[nn.Parameter]
    name: str = ""  # passed to the module as `group` when the phase has several
    interval: int = 1  # steps between two updates
    training: TrainOptions | None = None  # where it differs from the phase's
    optimizer_state: OptimizerState | None = None  # read at the start, updated at the end; None starts afresh


@dataclass(frozen=True)
class Phase:
    """Something to train: one module whose forward(batch) returns the named, weighted loss terms. Everything that
    enters the loss is computed in that forward, so DDP and autocast see all of it. Parameters of the module that belong
    to no group are frozen while the phase runs. Building a phase must have no side effects and copy no weights: on
    resume, finished phases are built again but not run, at a moment when their weights are possibly not loaded yet."""

    name: str
    module: nn.Module
    batches: Batches
    groups: tuple[ParameterGroup, ...]
    training: TrainOptions
    batch_norm: Literal["train", "frozen"] = "train"  # whether BatchNorm statistics follow the data
    validation: Batches | None = None  # for the plateau schedule
    compilable: tuple[nn.Module, ...] = ()  # modules that torch.compile may compile: their structure never changes
    accuracy: Callable[[], Tensor | None] = lambda: None  # share of the last batch that is classified correctly
    identity: str | None = None  # what the module's loss is, if that can be said: equal phases have equal results

    @property
    def steps(self) -> int:
        """Length in optimizer steps."""
        return self.training.steps or self.training.epochs * len(self.batches)


@dataclass(frozen=True)
class DataPass:
    """A pass over data without optimizer steps; its result is gathered over all processes. The module, in evaluation
    mode, maps a batch to named tensors: `concat` joins their rows in the order of the data, `sum` adds them up, and
    `running` is for a module that adds up by itself: its result for the last batch is that of all."""

    name: str
    module: nn.Module
    batches: Batches
    epochs: int = 1
    reduce: Literal["concat", "sum", "running"] = "concat"
    gradients: bool = False


# A method yields its work piece by piece and is sent the result of each data pass.
Plan = Generator[Phase | DataPass, Any, None]


class Checkpointer(Protocol):
    """Saves the progress of one task, so that an interrupted run can be resumed. Phases and passes are numbered in the
    order in which the method yields them."""

    def restore_if_finished(self, number: int) -> bool:
        """Whether a phase or pass was finished before the interruption and is not run again. If the checkpoint was
        saved right after it, everything that the method stores is loaded."""

    def result(self, number: int) -> dict[str, Tensor]:
        """The result of a finished pass; empty for a phase."""

    def resume(self) -> dict[str, Tensor]:
        """The training state of the interrupted phase, after restoring the method to it; empty if there is none."""

    def due(self, step: int) -> bool:
        """Whether it is time to save after step number `step` of a phase. All processes get the same result."""

    def save(self, name: str, state: dict[str, Tensor]) -> None:
        """Save the training state of a phase; raises `Interrupted` if the run was asked to stop."""

    def finish(self, name: str, result: dict[str, Tensor], spared: float = 0.0) -> None:
        """Record that a phase or pass is finished; raises `Interrupted` if the run was asked to stop. Another run did
        `spared` seconds of its work, which count as this one's; less than 0 if this one has only waited."""

    @property
    def resumed_at(self) -> str | None:
        """Where the interrupted task is resumed; None if it begins."""


class PhaseResult(Protocol):
    """The result of a phase that several runs have in common."""

    def load(self) -> float | None:
        """Load it into the phase's module, and return the seconds that its training took; None if there is none yet."""

    def save(self, seconds: float) -> None:
        """Store the state of the phase's module."""


class PhaseResults(Protocol):
    """Finds the results of phases that several runs have in common."""

    def result(self, phase: Phase) -> AbstractContextManager[PhaseResult | None]:
        """The result of a phase; None if it cannot be shared."""


class Callback:
    """Receives what happens during learning: override the methods you need. Called in the first process only."""

    def on_task_begin(self, task: Task, saved_steps: Mapping[str, int | None]) -> None:
        """A task begins; `task.train` holds the images it trains on. If it is resumed, `saved_steps` has the number of
        steps of each phase that need not be repeated (None: all of the phase)."""

    def on_phase_begin(self, name: str, steps: int, epochs: int) -> None:
        """A phase or data pass begins."""

    def on_step(self, step: int, epoch: int, lr: float, terms: Mapping[str, float], rows: int) -> None:
        """Some steps are done: `terms` of the last one (empty in a data pass), `rows` since the last call."""

    def on_accuracy(self, accuracy: float) -> None:
        """Before `on_step` of a phase that trains a classifier: the share of the last batch, in the first process, that
        is classified correctly."""

    def on_phase_end(self, name: str, seconds: float) -> None:
        """A phase or data pass ended."""

    def on_evaluation(self, task: Task, evaluation: Evaluation) -> None:
        """The classifier was evaluated after a task."""

    def on_task_end(self, task: Task) -> None:
        """A task ended and its result is saved."""

    def close(self) -> None:
        """The end, also after an error or an interruption."""
