"""What every method shares. A method is what is done per task; it yields phases and sweeps to the engine."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch
from pydantic import Field
from torch import nn

from etag.core.errors import EtagError
from etag.core.options import Options, TrainOptions
from etag.core.outputs import Predictor
from etag.core.random import Placement, Stream
from etag.core.registry import Registry
from etag.core.scenario import Task
from etag.core.work import Phase, Plan, Player, Term
from etag.data.batches import ImageBatches
from etag.data.preprocess import Preprocess
from etag.data.views import IDENTITY, Views
from etag.methods.parts.objective import SolverObjective
from etag.models.backbone import ModelOptions
from etag.models.solver import LinearPredictor, Teacher, build_solver
from etag.models.weights import WeightsReport, load_weights

Growth = Literal["growing", "base", "fixed"]


class MethodOptions(Options):
    """Options of every method."""

    name: str
    batch_norm: Literal["train", "frozen"] = Field(
        "train", description="BatchNorm statistics after the base task: follow the data, or stay"
    )
    head: Literal["growing", "fixed"] = Field(
        "growing",
        description="outputs (and a generator's classes) are added task by task, or all are there from the start",
    )
    argmax: Literal["seen", "all"] = Field(
        "seen",
        description="outputs that compete when predicting: of the classes seen, or of a fixed head all",
    )


@dataclass(frozen=True)
class Card:
    """What a method is and what it asks for, as data."""

    summary: str
    source: str  # where it comes from
    stores: str  # what it keeps from task to task
    all_data: bool = False  # sees the images of all tasks again: an oracle
    exemplars: bool = False
    generator: str | None = None


@dataclass(frozen=True)
class Context:
    """What a method is given once, before the first task."""

    channels: int
    size: int
    classes: int  # over all tasks; only heads declared in full may look at it
    stream: Stream
    placement: Placement
    model: ModelOptions
    train: TrainOptions
    preprocess: Preprocess


class Method(ABC):
    """Base of all methods: a solver with a growing linear head, and the previous solver as teacher."""

    card: ClassVar[Card]
    Options: ClassVar[type[MethodOptions]] = MethodOptions

    def __init__(self, options: Any, context: Context) -> None:
        self.options, self.context = options, context
        self.teacher: Teacher | None = None
        self.rebuild([])

    # -- structure: changes in begin_task only ------------------------------------------------------------------

    def rebuild(self, task_sizes: Sequence[int]) -> None:
        """New networks, as they are after `begin_task` of tasks with so many classes, but untrained."""
        self.task_sizes: list[int] = []  # classes of the tasks begun so far
        self.build(self.context.stream.child("initial"))
        for classes in task_sizes:
            self.grow(classes)
        self.place()

    def build(self, stream: Stream) -> None:
        """The networks as they are before the first task."""
        c = self.context
        self.solver = build_solver(c.model, c.channels, c.size, stream)

    def load_weights(self) -> WeightsReport | None:
        """Before the first task: let the backbone begin with `model.weights`, if that is set.

        Not a part of `build`: a saved model is rebuilt without the file it once began with.
        """
        path = self.context.model.weights
        return None if path is None else load_weights(self.solver.backbone, path)

    def begin_task(self, task: Task) -> None:
        """Take the teacher, then grow."""
        if task.index:
            self.teacher = Teacher(self.solver)
        self.grow(task.new)
        self.place()

    def grow(self, classes: int) -> None:
        """Make room for new classes in everything that must know them."""
        self.task_sizes.append(classes)
        if room := self.room_for(classes, self.options.head):
            self.solver.head.grow(room, self.stream("grow").generator("head"))

    def room_for(self, classes: int, growth: Growth) -> int:
        """Classes that a head gets room for now: those that arrive; only the base ones; all at the base task."""
        if growth == "growing":
            return classes
        at_base = {"base": classes, "fixed": self.context.classes}[growth]
        return at_base if len(self.task_sizes) == 1 else 0

    def place(self) -> None:
        """Put every network on the device, convolutions in channels_last order."""
        for module in self.parts().values():
            module.to(self.context.placement.device)
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    # -- work -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def phases(self, task: Task) -> Plan:
        """The work of a task, piece by piece. A pure function of the method's state."""

    def end_task(self, task: Task) -> None:  # noqa: B027 (most methods have nothing to do here)
        """After the last phase."""

    def solver_phase(self, task: Task, terms: Sequence[Term], views: Views = IDENTITY) -> Phase:
        """Train the solver, as far as the terms make use of it, on their sum."""
        c, stream = self.context, self.stream("solver")
        training = c.train.for_task(task.index)
        task, held_out = task.holding_out(training.validation)
        objective = SolverObjective(self.solver, self.teacher, terms, views)
        size, drop_last = training.batch_size, training.drop_last
        batches = ImageBatches(task.train, c.preprocess, size, stream, c.placement, drop_last=drop_last)
        batch_norm: Literal["train", "frozen"] = "train" if task.index == 0 else self.options.batch_norm
        if batch_norm == "train" and batches.smallest == 1:
            raise EtagError(
                "a batch of one image can not train BatchNorm: give each task at least two images, and choose a "
                "train.batch_size that does not leave one over."
            )
        return Phase(
            name="solver",
            module=objective,
            batches=batches,
            players=(Player(self.solver.used_for(objective.need)),),
            training=training,
            batch_norm=batch_norm,
            validation=None
            if held_out is None
            else ImageBatches(held_out, c.preprocess, 4 * size, stream, c.placement, augment=False, shuffle=False),
        )

    def stream(self, *purpose: str | int) -> Stream:
        """Randomness of the current task, by purpose."""
        return self.context.stream.child("task", len(self.task_sizes) - 1, *purpose)

    # -- results --------------------------------------------------------------------------------------------------

    @property
    def seen(self) -> int:
        """Classes of all tasks begun so far."""
        return sum(self.task_sizes)

    def predictor(self) -> Predictor:
        """How the solver's outputs become answers."""
        return LinearPredictor(self.seen if self.options.argmax == "seen" else self.solver.head.outputs)

    def parts(self) -> dict[str, nn.Module]:
        """The networks that are kept from task to task, by role."""
        return {"solver": self.solver}


METHODS: Registry[type[Method]] = Registry("method", "etag.methods")
C = TypeVar("C", bound=type[Method])


def method(name: str, card: Card) -> Callable[[C], C]:
    """Decorator: register a method under its name."""

    def register(cls: C) -> C:
        cls.card = card
        METHODS.add(name)(cls)
        return cls

    return register
