"""The common part of methods whose backbone does not change after the base task.

The backbone is trained on the base task (from random or from pre-trained weights), or loaded and never trained. In
later tasks the learner computes the features of each image once.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, TypeVar

from pydantic import Field

from etag.core.errors import EtagError
from etag.core.options import Options
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Plan
from etag.methods.base import Method, MethodOptions
from etag.models.modules import Modules


class FrozenFeatureOptions(Options):
    """Where the frozen features come from; the accuracy depends strongly on it."""

    source: Literal["auto", "base", "weights"] = Field(
        "auto",
        description="base: the backbone is trained on the base task (`model.train`: which stages); weights: it is "
        "loaded and never trained; auto: weights if `model.weights` is set",
    )
    original: bool = Field(
        False, description="with source=base: add the features of the backbone as it was before the base task (APER)"
    )
    branches: bool = Field(
        False,
        description="with embedding distillation: add the features of its auxiliary classifiers, one set for each",
    )


class FrozenBackboneOptions(MethodOptions):
    """Options of methods with a frozen backbone."""

    head_growths: ClassVar[tuple[str, ...]] = ("growing",)
    features: FrozenFeatureOptions = Field(FrozenFeatureOptions(), description="the frozen features")


OptionsT = TypeVar("OptionsT", bound=FrozenBackboneOptions, covariant=True)


class FrozenBackboneMethod(Method[OptionsT]):
    """Trains the backbone at the base task, or not at all."""

    head_for_all_classes: ClassVar[bool] = False  # else the solver's head serves to train the backbone, and no more

    @property
    def adapts(self) -> bool:
        """Whether the base task trains the backbone."""
        source, loaded = self.options.features.source, self.context.model.weights is not None
        return not self.solver.backbone.is_frozen and (source == "base" or (source == "auto" and not loaded))

    def build(self, stream: Stream) -> None:
        """A backbone that remembers its first state and keeps branches, if asked. The auxiliary classifiers themselves
        exist only while the base task is trained."""
        super().build(stream)
        if self.options.features.original:
            self.solver.backbone.add_original()
        if self.embedding is not None:
            if self.options.features.branches:
                branches = [auxiliary.branch for auxiliary in self.solver.auxiliaries]
                self.solver.backbone.add_branches(branches, self.embedding.options.branches == "short")
            self.solver.auxiliaries = Modules()

    def check(self, task_sizes: Sequence[int]) -> None:
        """Check that the options fit together."""
        super().check(task_sizes)
        if self.options.features.source == "weights" and self.context.model.weights is None:
            raise EtagError(
                "method.features.source=weights needs a backbone from a file: set model.weights, or choose "
                "method.features.source=base."
            )
        if not self.adapts and self.embedding is not None:
            raise EtagError(
                "the backbone is loaded and not trained, so embedding distillation has nothing to do: leave "
                "method.embedding out, or set method.features.source=base."
            )
        if not self.adapts and self.options.features.original:
            raise EtagError(
                "method.features.original needs a backbone that is trained: set method.features.source=base."
            )
        if self.embedding is None and self.options.features.branches:
            raise EtagError(
                "method.features.branches needs auxiliary classifiers, which embedding distillation trains on the base "
                "task: set method.embedding={}, or leave it out."
            )
        if self.head_for_all_classes and self.solver.backbone.output_size > self.solver.backbone.feature_size:
            raise EtagError(
                f"the head of {self.options.name} is trained with the backbone, on its own features alone: leave out "
                "method.features.original and method.features.branches."
            )

    def new_head_classes(self, classes: int) -> int:
        """All, or the base classes if the head is to train the backbone, or none."""
        return classes if self.head_for_all_classes or (len(self.task_sizes) == 1 and self.adapts) else 0

    def sees_features(self, index: int) -> bool:
        """From the second task on; from the first, if the backbone is never trained."""
        return index > 0 or not self.adapts

    def begin_task(self, task: Task) -> None:
        """No teacher: nothing is distilled. Before the base task, remember the backbone as it is, if asked, and add the
        auxiliary classifiers."""
        if task.index == 0:
            if self.options.features.original:
                self.solver.backbone.copy_original()
            if self.embedding is not None:
                self.embedding.build(self.solver, self.context.stream.child("initial"))
        self.add_classes(task.num_new)
        self.move_to_device()

    def phases(self, task: Task) -> Plan:
        """Train the backbone at the base task; then learn from features."""
        if task.index == 0 and self.adapts:
            yield self.solver_phase(task, [self.cross_entropy(task)])
            for branch, auxiliary in zip(self.solver.backbone.branches, self.solver.auxiliaries, strict=False):
                branch.load_state_dict(auxiliary.branch.state_dict())
            self.solver.auxiliaries = Modules()
        yield from self.learn_task(task)

    @abstractmethod
    def learn_task(self, task: Task) -> Plan:
        """Learn a task with the frozen backbone; its images may be given as features (`sees_features`)."""

    def remarks(self) -> dict[str, str]:
        """Where the features come from."""
        weights = self.context.model.weights
        start = "" if weights is None else f"from {weights}, "
        return {"features": f"a frozen backbone, {start}{'trained on the base task' if self.adapts else 'not trained'}"}
