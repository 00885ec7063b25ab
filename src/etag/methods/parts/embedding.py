"""Embedding distillation: auxiliary classifiers behind the stages, trained on self-supervised views."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from etag.core.errors import EtagError
from etag.core.options import Options
from etag.core.outputs import Need
from etag.core.random import Stream
from etag.core.work import Step, Term
from etag.data.views import ROTATIONS
from etag.losses.embedding import auxiliary_cross_entropy, auxiliary_divergence
from etag.methods.base import Growth
from etag.models.solver import Solver


class EmbeddingOptions(Options):
    """Auxiliary classifiers and their distillation."""

    tau: PositiveFloat = Field(3.0, description="temperature of Eq. (4)")
    num_aux: PositiveInt | None = Field(
        None,
        description="auxiliaries trained at the base task; None is one for each stage but the last. "
        "Only those are ever distilled",
    )
    aux_new: Literal["none", "ce", "fixed"] = Field(
        "none",
        description="new classes in the auxiliaries: none (they keep the base classes), ce (they grow and Eq. (2) "
        "is trained on new data too), fixed (the release: all outputs are declared and trained at the base task)",
    )


class EmbeddingDistillation:
    """A part that any method with a staged solver can have."""

    def __init__(self, options: EmbeddingOptions) -> None:
        self.options = options
        self.views = ROTATIONS

    def build(self, solver: Solver, stream: Stream) -> None:
        """Put the auxiliaries in place, still without outputs."""
        stages = len(solver.backbone.stages)
        if stages < 2:
            raise EtagError("embedding distillation needs a backbone of at least two stages; this one has one.")
        count = self.options.num_aux or stages - 1
        if not stages - 1 <= count <= stages:
            raise EtagError(f"embedding.num_aux={count} does not fit: {stages - 1} or {stages} are possible here.")
        solver.add_auxiliaries(count, stream)

    @property
    def growth(self) -> Growth:
        """How the auxiliaries' outputs grow."""
        kinds: dict[str, Growth] = {"none": "base", "ce": "growing", "fixed": "fixed"}
        return kinds[self.options.aux_new]

    def grow(self, solver: Solver, classes: int, stream: Stream) -> None:
        """Make room for so many classes; where there are none to learn, what is not distilled is dropped."""
        if classes:
            for number, auxiliary in enumerate(solver.auxiliaries):
                auxiliary.head.grow(classes * self.views.count, stream.generator("auxiliary", number))
        else:
            del solver.auxiliaries[len(solver.backbone.stages) - 1 :]

    def construction(self, weight: float) -> Term:
        """Eq. (2). It runs over all outputs, so each of them gets a gradient before it is ever distilled."""

        def compute(step: Step) -> Tensor:
            return auxiliary_cross_entropy(step.student.auxiliary, self.views.labels(step.batch.labels))

        return Term("aux_ce", compute, weight, student=Need.AUXILIARY)

    def distillation(self, solver: Solver, weight: float) -> Term:
        """Eq. (4), for all stages but the last."""
        count = len(solver.backbone.stages) - 1

        def compute(step: Step) -> Tensor:
            student, teacher = step.student.auxiliary[:count], step.teacher.auxiliary[:count]
            return auxiliary_divergence(student, teacher, self.options.tau)

        return Term("kl", compute, weight, student=Need.AUXILIARY, teacher=Need.AUXILIARY)

    def terms_after_base(self, solver: Solver, weight: float) -> list[Term]:
        """What a later task trains: Eq. (4), and Eq. (2) where the auxiliaries learn new classes."""
        terms = [self.distillation(solver, weight)]
        return [*terms, self.construction(1.0)] if self.options.aux_new == "ce" else terms
