"""What the engine can do for a method: train a Phase, run a Sweep."""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from etag.core.options import TrainOptions
from etag.core.outputs import Need, Outputs, Views
from etag.core.random import Draws


class Batch:
    """One step's input on one process: its rows of the global batch, and that step's random draws.

    Not a dataclass: Fabric copies dataclasses field by field on their way into a module.
    """

    __slots__ = ("draws", "inputs", "labels", "total")

    def __init__(self, inputs: Tensor, labels: Tensor, draws: Draws, total: int) -> None:
        self.inputs = inputs  # normalized images, or features
        self.labels = labels
        self.draws = draws
        self.total = total  # rows of the global batch


class Batches(Protocol):
    """A source of batches that can be entered at any epoch and gives the same batches each time."""

    def __len__(self) -> int:
        """Steps per epoch."""

    def epoch(self, index: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, from the one numbered `start` on."""


Terms = dict[str, Tensor]  # named, weighted; their sum is the loss


@dataclass(frozen=True)
class Step:
    """All that a term may look at."""

    batch: Batch
    shown: Views
    student: Outputs
    teacher: Outputs


@dataclass(frozen=True)
class Term:
    """One loss term; `compute` is pure maths on what the two networks said."""

    name: str
    compute: Callable[[Step], Tensor]
    weight: float = 1.0
    student: Need = Need.NOTHING
    teacher: Need = Need.NOTHING
    second_order: bool = False  # it differentiates a gradient


class OptimizerState(nn.Module):
    """What an optimizer remembers of each parameter, kept from one phase to the next like anything else that is kept.

    Parameters are known by the names they have in the phase's module. One that has grown since keeps what is
    remembered of its old rows.
    """

    def of(self, name: str, parameter: nn.Parameter) -> dict[str, Tensor]:
        """What is remembered of a parameter; nothing of a new one."""
        prefix, found = _buffer_name(name, ""), {}
        for key, value in self.named_buffers():
            if key.startswith(prefix):
                added = len(parameter) - len(value) if value.ndim else 0
                grown = torch.cat([value, value.new_zeros(added, *value.shape[1:])]) if added else value
                found[key.removeprefix(prefix)] = grown
        return found

    def note(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Remember this of a parameter."""
        for key, value in state.items():
            self.register_buffer(_buffer_name(name, key), value.detach().clone())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for key, value in state_dict.items():
            if key.startswith(prefix):
                self.register_buffer(key.removeprefix(prefix), value.clone())
        super()._load_from_state_dict(state_dict, prefix, *args)


def _buffer_name(parameter: str, key: str) -> str:
    """Dots are for modules only."""
    return f"{parameter}:{key}".replace(".", "/")


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that are stepped together. A GAN phase has two; most phases have one."""

    parameters: list[nn.Parameter]
    name: str = ""  # passed to the module as `player` when the phase has several
    every: int = 1  # steps from one turn to the next
    training: TrainOptions | None = None  # where it differs from the phase's
    optimizer_state: OptimizerState | None = (
        None  # what its optimizer begins with and leaves behind; None begins anew
    )


@dataclass(frozen=True)
class Phase:
    """Something to train: one module whose forward(batch) returns the named terms.

    Everything that enters the loss is computed in that forward, so DDP and autocast see all of it. Parameters of
    the module that belong to no player are frozen while the phase runs. Building a phase draws nothing,
    changes nothing and copies nothing that an earlier phase trains: on resume, finished phases are built again and
    skipped, and what they trained is brought back only when the next one runs.
    """

    name: str
    module: nn.Module
    batches: Batches
    groups: tuple[ParameterGroup, ...]
    training: TrainOptions
    batch_norm: Literal["train", "frozen"] = "train"  # whether statistics follow the data
    validation: Batches | None = None  # watched by the plateau schedule
    static: tuple[nn.Module, ...] = ()  # parts that never change their structure: torch.compile may have them

    @property
    def steps(self) -> int:
        """Length in optimizer steps."""
        return self.training.steps or self.training.epochs * len(self.batches)


@dataclass(frozen=True)
class DataPass:
    """A deterministic pass without an optimizer step; its result is gathered over all processes.

    The module, in evaluation mode, maps a batch to named tensors. `concat` keeps their rows in the order of the
    data; `sum` adds them up.
    """

    name: str
    module: nn.Module
    batches: Batches
    epochs: int = 1
    reduce: Literal["concat", "sum"] = "concat"
    gradients: bool = False


# A method yields its work piece by piece and is sent each sweep's result.
Plan = Generator[Phase | DataPass, Any, None]


class Checkpointer(Protocol):
    """Remembers the work of a task while it is done, piece by piece, so that a run that was cut can go on.

    Pieces are counted in the order in which the method yields them.
    """

    def done(self, number: int) -> bool:
        """Whether a piece was finished before the run was cut; when the last such piece is asked for, everything the
        method keeps is brought to where it was then."""

    def result(self, number: int) -> dict[str, Tensor]:
        """What a finished sweep found; nothing for a phase."""

    def resume(self) -> dict[str, Tensor]:
        """The state of a phase that was cut, all that the method keeps being brought to it; empty if it was not."""

    def due(self, step: int) -> bool:
        """Whether it is time to save, so many steps into a phase. All processes get the same answer."""

    def save(self, name: str, state: dict[str, Tensor]) -> None:
        """A phase has come so far; may not return, if the run is to be interrupted."""

    def finish(self, name: str, result: dict[str, Tensor]) -> None:
        """A piece is finished."""


class Callback(Protocol):
    """Hears what goes on: progress bars and logs."""

    def on_task_begin(self, index: int) -> None:
        """What follows belongs to this task."""

    def on_phase_begin(self, name: str, steps: int, epochs: int) -> None:
        """A phase or sweep begins."""

    def on_step(self, step: int, epoch: int, lr: float, terms: Mapping[str, float], rows: int) -> None:
        """Some steps were made: `terms` are those of the last one, `rows` the images since the last call."""

    def on_phase_end(self, name: str, seconds: float) -> None:
        """It ended."""
