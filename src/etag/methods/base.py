"""What every method shares. A method is what is done per task; it yields phases and sweeps to the engine."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from etag.core.errors import EtagError
from etag.core.options import Options, TrainOptions, merge
from etag.core.outputs import Need, Outputs, Predictor
from etag.core.random import Placement, Stream
from etag.core.scenario import ImageSet, Task
from etag.core.work import DataPass, ParameterGroup, Phase, Plan, Term
from etag.data.batches import ImageBatches
from etag.data.preprocess import Preprocess
from etag.data.views import IDENTITY, ViewTransforms
from etag.methods.parts.classification import Scope, classification
from etag.methods.parts.embedding import EmbeddingDistillation, EmbeddingOptions, Growth
from etag.methods.parts.memory import ExemplarMemory, ExemplarOptions
from etag.methods.parts.objective import SolverObjective
from etag.models.backbone import ModelOptions
from etag.models.heads import CosineHead, LinearHead
from etag.models.predictors import LinearPredictor, MultiHeadPredictor
from etag.models.solver import Features, Teacher, build_solver
from etag.models.weights import WeightsReport, load_weights

# what a method may keep from task to task: the keys of `parts()`
ROLES = {
    "solver": "the network that classifies, with its auxiliaries",
    "generator": "a network that makes features",
    "importance": "a number per backbone weight",
    "scores": "mean scores per class",
    "prototypes": "mean features per class",
    "exemplars": "images",
    "scale": "mean and deviation of every feature",
    "moments": "what an optimizer remembers of each parameter",
}


class MethodOptions(Options):
    """Options of every method."""

    preset: ClassVar[dict[str, Any]] = {}  # other defaults than the class it derives from, inside groups too

    name: str
    batch_norm: Literal["train", "frozen"] = Field(
        "train", description="BatchNorm statistics after the base task: follow the data, or stay"
    )
    head: Literal["growing", "fixed", "multi", "cosine", "proxies"] = Field(
        "growing",
        description="growing: outputs (and a generator's classes) are added task by task; fixed: all are there from "
        "the start; multi: a head a task, each trained alone; cosine, proxies: scaled similarities, growing",
    )
    argmax: Literal["seen", "all"] = Field(
        "seen",
        description="outputs that compete when predicting: of the classes seen, or of a fixed head all",
    )
    embedding: EmbeddingOptions | None = Field(
        None,
        description="embedding distillation beside the method's own terms; the prefix e of a name switches it on",
    )

    @model_validator(mode="before")
    @classmethod
    def _upon_preset(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        if values.get("exemplars") and "exemplars" not in cls.model_fields:
            raise ValueError(
                f"{values.get('name')} keeps no exemplars: leave them out, or choose il2m, lucir or podnet"
            )
        for above in cls.__mro__:
            values = merge(above.__dict__.get("preset", {}), values)
        return values


class MultiHeadOptions(MethodOptions):
    """Options of methods whose tasks have a head each."""

    head: Literal["multi", "growing"] = "multi"
    answer: Literal["probability", "logit"] = Field(
        "probability",
        description="with head=multi: the highest probability over the heads' own softmaxes (the paper), or the "
        "highest logit of all heads (FACIL)",
    )


@dataclass(frozen=True)
class MethodInfo:
    """What a method is and what it asks for, as data."""

    summary: str
    source: str  # where it comes from
    stores: str  # what it keeps from task to task, and how that grows
    head: str = "linear, growing"
    all_data: bool = False  # sees the images of all tasks again: an oracle
    exemplars: bool = False
    generator: str | None = None
    title: str = ""  # as papers write its name; empty is its registered name
    color: str | None = None  # of its lines in figures, such as "#0072B2"; None takes one that is free


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
    learns: bool = True  # if not, it shall only answer: what is for learning alone is left out


class Method(ABC):
    """Base of all methods: a solver with a growing head, the previous solver as teacher, exemplars if it has any, and
    embedding distillation if that is asked for."""

    card: ClassVar[MethodInfo]
    info: ClassVar[MethodInfo]
    name: ClassVar[str]  # under which it is registered
    Options: ClassVar[type[MethodOptions]] = MethodOptions
    embeds: ClassVar[bool] = False  # whether it is another method with embedding distillation added
    outputs_per_class: ClassVar[int] = 1  # of the head
    answering: ClassVar[frozenset[str]] = frozenset({"solver"})  # roles of the parts that its predictor is made of
    forgets: ClassVar[bool] = False  # whether a class can be taken out of it
    domains: ClassVar[bool] = False  # whether it can learn tasks that bring no new class
    views: ViewTransforms = IDENTITY  # that its own terms look at

    def __init__(self, options: Any, context: Context) -> None:
        self.options, self.context = options, context
        self.teacher: Teacher | None = None
        embeds = options.embedding is not None and context.learns
        self.embedding = EmbeddingDistillation(options.embedding) if embeds else None
        if self.embedding is not None:
            self._share_views(self.embedding)
        self.rebuild([])

    def _share_views(self, embedding: EmbeddingDistillation) -> None:
        if self.views not in (IDENTITY, embedding.views):
            raise EtagError(
                f"embedding.views={embedding.views.name} does not go with {self.options.name}, whose own views are "
                f"{self.views.name}: an image has one set of views."
            )
        embedding.views.check(self.context.channels, self.context.size)
        self.views = embedding.views

    # -- structure: changes in begin_task only ------------------------------------------------------------------

    def check(self, task_sizes: Sequence[int]) -> None:
        """Before anything is trained: refuse tasks of these sizes if the method cannot learn them."""
        plain = self.embedding is None and self.memory is None and self.options.head != "multi"
        if 0 in task_sizes and not (self.domains and plain):
            raise EtagError(
                f"{self.options.name} counts on new classes in every task, and data.domains brings none: choose "
                "fine, joint, dgr or tag."
            )
        if self.options.head == "multi" and min(task_sizes) == 1:
            raise EtagError(
                f"{self.options.name} has a head for each task, and a head for one class alone is always sure: "
                "choose a split whose tasks have two classes or more, or method.head=growing."
            )
        if self.memory is not None and (self.memory.options.total or sum(task_sizes)) < sum(task_sizes):
            raise EtagError(
                f"method.exemplars.total={self.memory.options.total} is less than one for each of the "
                f"{sum(task_sizes)} classes: keep more, or set exemplars.per_class."
            )

    def check_maps(self) -> None:
        """Refuse a backbone without maps, for methods that look at them."""
        if not self.solver.backbone.has_maps:
            raise EtagError(
                f"{self.options.name} looks at maps, which model.backbone={self.context.model.backbone} has not: "
                "choose another backbone."
            )

    def rebuild(self, task_sizes: Sequence[int]) -> None:
        """New networks, as they are after `begin_task` of tasks with so many classes, but untrained."""
        self.task_sizes: list[int] = []  # classes of the tasks begun so far
        self.build(self.context.stream.child("initial"))
        for classes in task_sizes:
            self.grow(classes)
        self.place()

    def build(self, stream: Stream) -> None:
        """The networks as they are before the first task, and empty memories."""
        c = self.context
        self.solver = build_solver(c.model, c.channels, c.size, stream, self.new_head, self.signed)
        if self.embedding is not None:
            self.embedding.build(self.solver, stream)
        exemplars: ExemplarOptions | None = getattr(self.options, "exemplars", None)
        self.memory = None if exemplars is None else ExemplarMemory(exemplars)

    def new_head(self, features: int) -> LinearHead:
        """A head without outputs."""
        model = self.context.model
        if self.options.head == "cosine":
            return CosineHead(features, model.head_scale)
        return LinearHead(features, model.head_bias)

    @property
    def signed(self) -> bool:
        """Whether features go without the last activation, for a head that makes use of both signs."""
        return self.options.head in ("cosine", "proxies")

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
        stream = self.stream("grow")
        if room := self.head_room(classes):
            self.solver.head.grow(room * self.outputs_per_class, stream.generator("head"))
        if self.embedding is not None:
            self.embedding.grow(self.solver, self.disk_full_error(classes, self.embedding.growth), stream)

    def head_room(self, classes: int) -> int:
        """Classes that the solver's head gets room for now."""
        return self.disk_full_error(classes, "fixed" if self.options.head == "fixed" else "growing")

    def disk_full_error(self, classes: int, growth: Growth) -> int:
        """Classes that a head gets room for now: those that arrive; only the base ones; all at the base task."""
        if growth == "growing":
            return classes
        at_base = {"base": classes, "fixed": self.context.classes}[growth]
        return at_base if len(self.task_sizes) == 1 else 0

    def place(self) -> None:
        """Put everything that is kept on the device, convolutions in channels_last order."""
        placement = self.context.placement
        for module in self.parts().values():
            if placement.world > 1 and placement.device.type == "cuda":
                # a process's own share of a batch is small: statistics are those of all shares (changed in place)
                nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
            module.to(placement.device)
            for parameter in module.parameters():
                if parameter.ndim == 4:
                    parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)

    # -- work -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def phases(self, task: Task) -> Plan:
        """The work of a task, piece by piece. A pure function of the method's state."""

    def whole_task(self, task: Task) -> Plan:
        """A whole task, from its beginning to its end."""
        self.begin_task(task)
        yield from self.phases(task)
        self.end_task(task)

    def refine(self, task: Task, number: int) -> Plan:  # noqa: ARG002
        """The work of a task without new classes: more images of known ones. `number` tells it from others."""
        raise EtagError(
            f"{self.options.name} cannot learn more of the classes it knows: choose gfr, etag or one of their kin."
        )

    def end_task(self, task: Task) -> None:  # noqa: B027 (most methods have nothing to do here)
        """After the last phase."""

    def classification(self, task: Task, scope: Scope | None = None, weight: float = 1.0) -> Term:
        """Cross-entropy over all classes seen; with a head for each task, over the new head alone."""
        return classification(task, scope or ("new" if self.options.head == "multi" else "seen"), weight)

    def solver_phase(self, task: Task, terms: Sequence[Term], *, old_classes: bool | None = None) -> Phase:
        """Train the solver, as far as the terms make use of it, on their sum: on the images of the task, and on those
        that are kept. Embedding distillation adds its own terms.

        `old_classes` is whether the head's parameters for old classes learn; by default they do, unless each task has
        a head of its own.
        """
        training = self.context.train.for_task(task.index)
        task, held_out = task.holding_out(training.validation)
        added = [] if self.embedding is None else self.embedding.terms(task, self.solver)
        share = {} if self.embedding is None else self.embedding.share
        objective = SolverObjective(self.solver, self.teacher, [*terms, *added], self.views, **share)
        frozen = Need.NOTHING if self.embedding is None or self.embedding.learn(task) else Need.AUXILIARY
        if old_classes is None:
            old_classes = self.options.head != "multi"
        return self._phase(
            "solver",
            task.train if self.memory is None else self.memory.joined_to(task.train),
            objective,
            self.solver.used_for(objective.need & ~frozen, old_classes),
            training,
            "train" if task.index == 0 else self.options.batch_norm,
            held_out,
        )

    def balanced_phase(self, terms: Sequence[Term], training: TrainOptions) -> Phase:
        """Train the head alone, old classes too, on what is kept of all classes: equally much of each."""
        assert self.memory is not None
        objective = SolverObjective(self.solver, self.teacher, terms, IDENTITY)
        head = list(self.solver.head.parameters())
        return self._phase("balanced", self.memory.images, objective, head, training, "frozen")

    def _phase(
        self,
        name: str,
        images: ImageSet,
        objective: SolverObjective,
        parameters: list[nn.Parameter],
        training: TrainOptions,
        batch_norm: Literal["train", "frozen"],
        held_out: ImageSet | None = None,
    ) -> Phase:
        c, stream, size = self.context, self.stream(name), training.batch_size
        batches = ImageBatches(
            images, c.preprocess, size, stream, c.placement, drop_last=training.drop_last, side=self._side(training)
        )
        if batch_norm == "train" and batches.smallest < objective.fewest:
            raise EtagError(
                f"a batch of {batches.smallest} cannot train BatchNorm: give each task at least {objective.fewest} "
                "images, and choose a train.batch_size that does not leave fewer over."
            )
        return Phase(
            name=name,
            module=objective,
            batches=batches,
            groups=(ParameterGroup(parameters),),
            training=training,
            batch_norm=batch_norm,
            static=objective.static,
            validation=None
            if held_out is None
            else ImageBatches(held_out, c.preprocess, 4 * size, stream, c.placement, augment=False, shuffle=False),
        )

    def _side(self, training: TrainOptions) -> Callable[[int], int] | None:
        """The images' side in an epoch, where it is not always the same."""
        if training.start_size == 1:
            return None
        backbone = self.solver.backbone
        if not backbone.has_maps:
            raise EtagError(
                f"train.start_size={training.start_size} needs a backbone that takes images of any size: choose "
                f"another than {self.context.model.backbone}."
            )
        return partial(training.side, self.context.size, backbone.smallest)

    def features_pass(self, name: str, images: ImageSet, augmented_passes: int = 0) -> DataPass:
        """The solver's features of images as they are, or of augmented ones, in the order of the data."""
        batches = self.pass_batches(name, images, augment=augmented_passes > 0)
        return DataPass(name, Features(self.solver), batches, epochs=max(1, augmented_passes))

    def pass_batches(self, name: str, images: ImageSet, augment: bool = False) -> ImageBatches:
        """Images in the order of the data; large batches, for there are no gradients to be kept."""
        c, size = self.context, 4 * self.context.train.batch_size
        return ImageBatches(
            images, c.preprocess, size, self.stream(name), c.placement, augment=augment, shuffle=False
        )

    def remember(self, task: Task) -> Plan:
        """Keep exemplars of the task's classes, if the method keeps any."""
        if self.memory is not None:
            found = yield self.features_pass("exemplars", task.train)
            self.memory.add(task, found["features"], self.stream("exemplars").generator("selection"))

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
        if self.options.head == "multi" and self.options.answer == "probability":
            return MultiHeadPredictor(self.task_sizes)
        every = self.outputs_per_class
        classes = self.seen if self.options.argmax == "seen" else self.solver.head.outputs // every
        return LinearPredictor(classes, every)

    def forget(self, label: int) -> None:
        """Remove a class from everything that knows it; the labels after it move up."""
        if not self.forgets or self.memory is not None or self.options.head != "growing":
            raise EtagError(f"{self.options.name} cannot forget a class: fine, gfr, etag and their kin can.")
        task, place = 0, label
        while place >= self.task_sizes[task]:
            place -= self.task_sizes[task]
            task += 1
        if self.embedding is not None and task == 0:
            if self.task_sizes[0] == 1:
                raise EtagError("the last class of the first lesson cannot be forgotten: all others build upon it.")
            for auxiliary in self.solver.auxiliaries:
                auxiliary.head.drop(label * self.views.count, self.views.count)
        self.solver.head.drop(label)
        self.task_sizes[task] -= 1
        self.task_sizes = [classes for classes in self.task_sizes if classes]

    def imagined(self, classes: int, each: int) -> tuple[Tensor, Outputs] | None:  # noqa: ARG002
        """Labels and what the solver would say of so many images of each of the first `classes` classes, made by the
        generator. None where none can be made."""
        return None

    def made_images(self, rows: int, columns: int) -> Tensor | None:  # noqa: ARG002 (most methods make none)
        """Images as they would be replayed now, for people to look at: pixels between 0 and 1, row by row, all images
        of a row of one class where the method can ask for a class. None where it makes no images."""
        return None

    def remarks(self) -> dict[str, str]:
        """What must be said with every result, because it decides much of it."""
        return {}

    def parts(self) -> dict[str, nn.Module]:
        """What is kept from task to task, by role."""
        return {"solver": self.solver} | ({} if self.memory is None else {"exemplars": self.memory})
