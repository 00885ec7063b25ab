"""What every method shares: a solver, the previous solver as teacher, and helpers that plan the work of a task.

A method says which loss terms it adds, and in which order it trains and reads data. It yields phases and data passes;
the engine carries them out.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Self, TypeAlias, TypeVar

import torch
from pydantic import Field, model_validator
from torch import nn

from etag.core.errors import EtagError
from etag.core.memory import images_at_a_time
from etag.core.options import Options, TrainOptions, merge
from etag.core.outputs import Need
from etag.core.random import Placement, Stream
from etag.core.scenario import ImageSet, Task
from etag.core.work import DataPass, ParameterGroup, Phase, Plan, Term
from etag.data.batches import ImageBatches
from etag.data.preprocess import Preprocess
from etag.data.views import IDENTITY, ViewTransforms
from etag.methods.abilities import MeasuresFamiliarity
from etag.methods.parts.classification import Scope, cross_entropy_term
from etag.methods.parts.embedding import EmbeddingDistillation, EmbeddingOptions
from etag.methods.parts.fidelity import FidelityOptions
from etag.methods.parts.generators import FeatureGenerator
from etag.methods.parts.memory import ExemplarMemory, ExemplarOptions
from etag.methods.parts.objective import SolverObjective
from etag.models.backbone import ModelOptions
from etag.models.classifier import Classifier
from etag.models.heads import HeadOptions
from etag.models.prediction import HeadRule, PerTaskRule, PredictionRule
from etag.models.solver import FeatureCollector, Teacher, build_solver
from etag.models.weights import WeightsReport, load_weights


class MethodOptions(Options):
    """Options of every method."""

    changed_defaults: ClassVar[
        dict[str, Any]
    ] = {}  # replace defaults of the parent class; nested groups of options are merged
    head_kinds: ClassVar[tuple[str, ...]] = ("linear",)
    head_growths: ClassVar[tuple[str, ...]] = ("growing", "fixed")
    head_per_task: ClassVar[bool] = False  # whether `head.per_task` may be set

    name: str = Field(description="name of the method")
    batch_norm: Literal["train", "frozen"] = Field(
        "train", description="after the base task, BatchNorm statistics follow the data (train), or stay (frozen)"
    )
    head: HeadOptions = Field(HeadOptions(), description="the layer that maps features to class scores")
    embedding: EmbeddingOptions | None = Field(
        None, description="embedding distillation; the prefix e of a name (elwf) adds it"
    )

    @model_validator(mode="before")
    @classmethod
    def _apply_changed_defaults(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        if values.get("exemplars") and "exemplars" not in cls.model_fields:
            raise ValueError(f"{values.get('name')} stores no exemplars: leave method.exemplars out")
        for parent in cls.__mro__:
            values = merge(parent.__dict__.get("changed_defaults", {}), values)
        return values

    @model_validator(mode="after")
    def _check_head(self) -> Self:
        for key, value, allowed in (
            ("kind", self.head.kind, self.head_kinds),
            ("growth", self.head.growth, self.head_growths),
        ):
            if value not in allowed:
                raise ValueError(f"head.{key}={value} does not work with {self.name}: choose {' or '.join(allowed)}")
        if self.head.per_task and not self.head_per_task:
            raise ValueError(f"head.per_task=true does not work with {self.name}: its tasks share one head")
        return self


class PerTaskMethodOptions(MethodOptions):
    """Options of methods whose tasks have one head each, unless `head.per_task` is turned off."""

    changed_defaults: ClassVar[dict[str, Any]] = {"head": {"kind": "linear", "per_task": True}}
    head_growths: ClassVar[tuple[str, ...]] = ("growing",)
    head_per_task: ClassVar[bool] = True


class ExemplarMethodOptions(MethodOptions):
    """Options of methods that may store exemplars."""

    exemplars: ExemplarOptions | None = Field(None, description="images to store; null stores none")


@dataclass(frozen=True)
class MethodInfo:
    """What a method is and what it stores, as data."""

    title: str  # as papers write it
    summary: str
    source: str  # where it was published
    stores: str  # what is stored from task to task, and how that grows
    head: str = "linear, growing"
    all_data: bool = False  # needs the images of all tasks: an upper bound
    exemplars: bool = False
    generator: str | None = None
    color: str | None = None  # in figures; None: chosen automatically


@dataclass(frozen=True)
class Context:
    """What a method is given once, before the first task."""

    channels: int
    size: int
    classes: int  # of all tasks, if known: for fixed heads, aux_classes=all, and to recognize the last task
    stream: Stream
    placement: Placement
    model: ModelOptions
    train: TrainOptions
    preprocess: Preprocess
    locate_weights: Callable[[str], Path] = Path  # from `model.weights` to their file


OptionsT = TypeVar("OptionsT", bound=MethodOptions, covariant=True)


class Method(ABC, Generic[OptionsT]):
    """Base of all methods. During learning, the structure of its networks changes in `begin_task` only."""

    info: ClassVar[MethodInfo]
    name: ClassVar[str]  # under which it is registered
    Options: ClassVar[type[MethodOptions]] = MethodOptions
    # for each pair (NAME, changed defaults), `resolve` applies the defaults, then a recipe's section `methods.NAME`
    recipe_sections: ClassVar[tuple[tuple[str, dict[str, Any]], ...]] = ()
    is_e_variant: ClassVar[bool] = False  # whether it is eXX: another method with embedding distillation added
    has_e_variant: ClassVar[bool] = True  # whether `e` + name exists
    outputs_per_class: ClassVar[int] = 1  # of the head
    learns_domains: ClassVar[bool] = False  # whether it can learn tasks that bring no new class
    # the views that each step makes of its images: the method's own (PASS), or those of embedding distillation
    transforms: ViewTransforms = IDENTITY

    def __init__(self, options: OptionsT, context: Context) -> None:
        self.options, self.context = options, context
        self.embedding: EmbeddingDistillation | None = None
        if options.embedding is not None:
            self.embedding = EmbeddingDistillation(options.embedding, self.fidelity)
            self._use_views(self.embedding.transforms)
        self.build_after([])

    @property
    def fidelity(self) -> FidelityOptions:
        """Choices where the authors' published code differs from the paper; by default the paper's."""
        return FidelityOptions()

    def _use_views(self, transforms: ViewTransforms) -> None:
        if self.transforms not in (IDENTITY, transforms):
            raise EtagError(
                f"embedding.views={transforms.name} does not go with {self.options.name}, whose own views are "
                f"{self.transforms.name}: both must use the same views."
            )
        transforms.check(self.context.channels, self.context.size)
        self.transforms = transforms

    # -- structure -------------------------------------------------------------------------------------------------

    def check(self, task_sizes: Sequence[int]) -> None:
        """Raise an error, before anything is trained, if the method cannot learn tasks of these sizes."""
        without_additions = self.embedding is None and self.memory is None and not self.options.head.per_task
        if 0 in task_sizes and not (self.learns_domains and without_additions):
            raise EtagError(
                f"{self.options.name} needs new classes in every task, and with data.domains=true later tasks have "
                "none: choose a method that supports this (`etag methods`)."
            )
        if self.options.head.per_task and min(task_sizes) == 1:
            raise EtagError(
                f"{self.options.name} has one head per task, and the softmax of a one-class head is always 1: choose "
                "a split with two or more classes per task, or method.head.per_task=false."
            )
        if self.memory is not None and (self.memory.options.total or sum(task_sizes)) < sum(task_sizes):
            raise EtagError(
                f"method.exemplars.total={self.memory.options.total} is less than one image for each of the "
                f"{sum(task_sizes)} classes: raise it, or set exemplars.per_class."
            )

    def sees_features(self, index: int) -> bool:  # noqa: ARG002
        """Whether the backbone does not change in task number `index` or later. The learner then computes the features
        of each image once, without augmentation, and the method gets them in place of the images."""
        return self.solver.backbone.is_frozen and self.memory is None

    def check_maps(self) -> None:
        """Raise an error if the backbone has no feature maps; for methods that need them."""
        if self.solver.backbone.is_frozen:
            raise EtagError(
                f"{self.options.name} needs the feature maps of a backbone that is trained, and model.train=head "
                "freezes it: choose model.train=all or last-N."
            )
        if not self.solver.backbone.has_maps:
            raise EtagError(
                f"{self.options.name} needs the feature maps of a convolutional backbone, and "
                f"model.backbone={self.context.model.backbone} has none: choose another backbone."
            )

    def build_after(self, task_sizes: Sequence[int]) -> None:
        """Create untrained networks with the structure they have after tasks of these sizes."""
        self.task_sizes: list[int] = []  # classes of the tasks begun so far
        self.parts: dict[str, nn.Module] = {}  # everything that is stored from task to task, by role
        self.generator: FeatureGenerator | None = None
        self.teacher: Teacher | None = None
        self.memory: ExemplarMemory | None = None
        self.build(self.context.stream.child("initial"))
        for classes in task_sizes:
            self.add_classes(classes)
        self.move_to_device()

    def build(self, stream: Stream) -> None:
        """Create the networks as they are before the first task; a subclass adds what it stores to `parts`."""
        c = self.context
        self.solver = build_solver(c.model, self.options.head, c.channels, c.size, stream)
        self.parts["solver"] = self.solver
        if self.embedding is not None:
            self.embedding.build(self.solver, stream)
            if not self.solver.auxiliaries:  # every stage that it could distill is frozen
                self.embedding, self.transforms = None, type(self).transforms
        if isinstance(self.options, ExemplarMethodOptions) and self.options.exemplars is not None:
            self.parts["exemplars"] = self.memory = ExemplarMemory(self.options.exemplars)

    def add_generator(self, generator: FeatureGenerator) -> None:
        """Store a generator's network; from now on it is told of every task."""
        self.generator = generator
        self.parts[generator.role] = generator.network

    def load_weights(self) -> WeightsReport | None:
        """Load `model.weights`, if set, before the first task; a saved model is rebuilt without them."""
        source = self.context.model.weights
        return None if source is None else load_weights(self.solver.backbone, self.context.locate_weights(source))

    def begin_task(self, task: Task) -> None:
        """Freeze copies of the old networks, then add the new classes."""
        if task.index:
            self.teacher = Teacher(self.solver)
        if self.generator is not None:
            self.generator.begin_task(task)
        self.add_classes(task.num_new)
        self.move_to_device()

    def add_classes(self, classes: int) -> None:
        """Add outputs for new classes to everything that has one per class."""
        self.task_sizes.append(classes)
        stream, first = self.stream("grow"), len(self.task_sizes) == 1
        if new := self.new_head_classes(classes):
            self.solver.head.grow(new * self.outputs_per_class, stream.torch_generator("head"))
            if self.generator is not None:
                self.generator.add_classes(new, stream)
        if self.embedding is not None and first:
            outputs = self.context.classes if self.embedding.all_classes else classes
            self.embedding.add_outputs(self.solver, outputs, stream)
        elif self.embedding is not None:
            self.embedding.remove_last_stage_auxiliary(self.solver)

    def new_head_classes(self, classes: int) -> int:
        """How many classes the head gains when a task brings `classes` new ones; a fixed head gains the classes of
        all tasks at the first task, and none later."""
        if self.options.head.growth == "growing":
            return classes
        return self.context.classes if len(self.task_sizes) == 1 else 0

    def move_to_device(self) -> None:
        """Move everything that is stored to the device, convolutions in channels_last order."""
        placement = self.context.placement
        for module in self.parts.values():
            if placement.world > 1 and placement.device.type == "cuda":
                # each process has a small share of a batch: statistics are taken over all shares (changed in place)
                nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
            module.to(placement.device)
            for parameter in module.parameters():
                if parameter.ndim == 4:
                    parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)

    # -- work ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def phases(self, task: Task) -> Plan:
        """The work of a task: yields phases and data passes, always the same for the same state and task."""

    def end_task(self, task: Task) -> None:
        """Called after the last phase."""

    def cross_entropy(self, task: Task, scope: Scope | None = None, weight: float = 1.0) -> Term:
        """Cross-entropy over all seen classes; with one head per task, over the new head alone."""
        return cross_entropy_term(task, scope or ("new" if self.options.head.per_task else "seen"), weight)

    def embedding_terms(self, task: Task) -> list[Term]:
        """The terms that embedding distillation adds to the solver phase, if the method uses it."""
        return [] if self.embedding is None else self.embedding.terms(task, self.solver)

    def solver_phase(self, task: Task, terms: Sequence[Term], *, train_old_rows: bool | None = None) -> Phase:
        """Train the solver on the task's images and stored exemplars, with these terms and those that `embedding_terms`
        returns (none where the method lists them itself, as eTag does). `train_old_rows` says whether the head's rows
        of old classes are trained; by default they are, unless each task has its own head."""
        training = self.context.train.for_task(task.index)
        task, held_out = task.holding_out(training.validation)
        e = self.embedding
        sampling = {} if e is None else e.options.model_dump(include={"views_per_image", "image_share"})
        all_terms = [*terms, *self.embedding_terms(task)]
        objective = SolverObjective(self.solver, self.teacher, all_terms, self.transforms, **sampling)
        train_auxiliaries = bool(objective.need & Need.AUXILIARY) and e is not None and e.trains_auxiliaries(task)
        if train_old_rows is None:
            train_old_rows = not self.options.head.per_task
        return self._phase(
            "solver",
            task.train if self.memory is None else self.memory.joined_to(task.train),
            objective,
            self.solver.parameters_to_train(train_auxiliaries, train_old_rows),
            training,
            "train" if task.index == 0 else self.options.batch_norm,
            held_out,
        )

    def balanced_phase(self, terms: Sequence[Term], training: TrainOptions) -> Phase:
        """Train the head alone on the stored exemplars, which have the same number of images for each class."""
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
        if batch_norm == "train" and len(images) < objective.smallest_batch:
            # so few images are several times in each batch, augmented differently
            images = images.select(torch.arange(len(images)).repeat(ceil(objective.smallest_batch / len(images))))
        batches = ImageBatches(images, c.preprocess, size, stream, c.placement, drop_last=training.drop_last)
        if batch_norm == "train" and batches.smallest < objective.smallest_batch:
            raise EtagError(
                f"the last batch of an epoch has {batches.smallest} image(s), and BatchNorm needs "
                f"{objective.smallest_batch}: add images, set train.drop_last=true, or choose another train.batch_size."
            )
        return Phase(
            name=name,
            module=objective,
            batches=batches,
            groups=(ParameterGroup(parameters),),
            training=training,
            batch_norm=batch_norm,
            compilable=objective.compilable,
            accuracy=objective.accuracy,
            identity=objective.identity and f"{objective.identity} {c.model!r}" if len(self.task_sizes) == 1 else None,
            validation=None
            if held_out is None
            else ImageBatches(held_out, c.preprocess, 4 * size, stream, c.placement, augment=False, shuffle=False),
        )

    def features_pass(
        self, name: str, images: ImageSet, augmented_passes: int = 0, size: int | None = None
    ) -> DataPass:
        """The work of computing the solver's features of images, in their order: in one pass over them without
        augmentation, or in `augmented_passes` passes with it. `size` is that of the batches."""
        passes = 0 if images.holds_features else augmented_passes  # features are not augmented: they would be copies
        batches = self.pass_batches(name, images, passes > 0, size)
        return DataPass(name, FeatureCollector(self.solver.backbone), batches, epochs=max(1, passes))

    def pass_batches(self, name: str, images: ImageSet, augment: bool = False, size: int | None = None) -> ImageBatches:
        """Batches of images in the order of the data; of `pass_size` images by default."""
        c, size = self.context, size or self.pass_size(images)
        return ImageBatches(images, c.preprocess, size, self.stream(name), c.placement, augment=augment, shuffle=False)

    def pass_size(self, images: ImageSet) -> int:
        """How many images a batch of a pass has: more than in training, because no gradients are held."""
        c, size = self.context, 4 * self.context.train.batch_size
        return size if images.holds_features else images_at_a_time(size, c.preprocess.size, c.placement.device)

    def store_exemplars(self, task: Task) -> Plan:
        """Choose and store exemplars of the task's classes, if the method stores any."""
        if self.memory is not None:
            result = yield self.features_pass("exemplars", task.train)
            self.memory.add(task, result["features"], self.stream("exemplars").torch_generator("selection"))

    def stream(self, *purpose: str | int) -> Stream:
        """The random stream of the current task, by purpose."""
        return self.context.stream.child("task", len(self.task_sizes) - 1, *purpose)

    # -- results ---------------------------------------------------------------------------------------------------

    @property
    def seen(self) -> int:
        """Classes of all tasks begun so far."""
        return sum(self.task_sizes)

    def classifier(self) -> Classifier:
        """What predicts now; it shares its weights with this method."""
        c = self.context
        familiarity = self.familiarity if isinstance(self, MeasuresFamiliarity) else None
        rule = self.prediction_rule()
        return Classifier(self.solver.backbone, rule, c.model, c.channels, c.size, familiarity=familiarity)

    def prediction_rule(self) -> PredictionRule:
        """How features become scores over the classes."""
        head = self.solver.head
        if self.options.head.per_task and self.options.head.compare == "probability":
            return PerTaskRule(head, self.task_sizes)
        per_class = self.outputs_per_class
        classes = self.seen if self.fidelity.argmax == "seen" else head.outputs // per_class
        return HeadRule(head, classes, per_class)

    @property
    def cannot_continue_after_run(self) -> bool:
        """Whether the model of a finished run cannot learn more, because its last task does not train the
        generator."""
        return False

    def remarks(self) -> dict[str, str]:
        """Facts that the result depends on, by topic; they are printed with it. Example: where frozen features come
        from."""
        return {}

    def remove_class(self, label: int) -> str:
        """Remove a class from solver and generator, for methods that can forget; returns what remains of it."""
        if self.memory is not None or self.options.head.growth != "growing" or self.options.head.per_task:
            raise EtagError(f"{self.options.name} can forget a class only with one growing head and without exemplars.")
        if self.embedding is not None and label < self.task_sizes[0]:
            if self.task_sizes[0] == 1:
                raise EtagError(
                    "the last class of the first task cannot be forgotten: the auxiliary classifiers are built on it."
                )
            for auxiliary in self.solver.auxiliaries:
                auxiliary.head.remove_rows(label * self.transforms.count, self.transforms.count)
        if self.generator is not None:
            self.generator.remove_class(label)
        self.solver.head.remove_rows(label)
        self.remove_from_task_sizes(label)
        return "weights of networks that were trained with its images"

    def remove_from_task_sizes(self, label: int) -> None:
        """One class less in the task that brought the class `label`; a task without classes is dropped."""
        task, first = 0, 0
        while label >= first + self.task_sizes[task]:
            first += self.task_sizes[task]
            task += 1
        self.task_sizes[task] -= 1
        self.task_sizes = [classes for classes in self.task_sizes if classes]


AnyMethod: TypeAlias = Method[MethodOptions]
