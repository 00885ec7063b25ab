"""Embedding distillation: auxiliary classifiers behind the stages, trained on self-supervised views (Eqs. 2 and 4).

Any method with a solver in stages can use it: the prefix `e`, or the option `embedding`, adds its terms to the
method's own, in the same pass.
"""

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from etag.core.errors import EtagError
from etag.core.options import Options
from etag.core.outputs import Need, require
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import StepData, Term
from etag.data.views import VIEW_TRANSFORMS, ViewsName
from etag.losses.embedding import auxiliary_cross_entropy, auxiliary_divergence
from etag.methods.parts.fidelity import FidelityOptions
from etag.models.solver import Solver


class EmbeddingOptions(Options):
    """Auxiliary classifiers and their distillation."""

    tau: PositiveFloat = Field(3.0, description="temperature of Eq. (4)")
    lambda_kl: NonNegativeFloat | None = Field(None, description="weight of Eq. (4) in Eq. (9); null: m_old / m_new")
    views: ViewsName = Field(
        "rotation", description="the self-supervised task; `none`: the auxiliaries see the images only"
    )
    views_per_image: PositiveInt | None = Field(
        None,
        description="views per image in a step, drawn at random; null: all. On average the loss is that of all "
        "views (except Eq. (3) with fidelity.l2_views=all, l2_reduction=frobenius)",
    )
    image_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of the images that the auxiliaries see, drawn at random; the other terms use all images",
    )
    branches: Literal["full", "short"] = Field(
        "full", description="auxiliaries repeat the stages after theirs (the paper), or have one block per stage"
    )
    after_base: Literal["trained", "frozen"] = Field("trained", description="auxiliaries after the base task")
    last_stage: bool = Field(False, description="also an auxiliary behind the last stage, at the base task only")


class EmbeddingDistillation:
    """The auxiliaries of a solver and the loss terms they add."""

    def __init__(self, options: EmbeddingOptions, fidelity: FidelityOptions | None = None) -> None:
        self.options, self._fidelity = options, fidelity or FidelityOptions()
        self.transforms = VIEW_TRANSFORMS[options.views]
        if (options.views_per_image or 1) > self.transforms.count:
            raise EtagError(
                f"embedding.views_per_image={options.views_per_image} is too many: {self.transforms.name} has "
                f"{self.transforms.count} views."
            )

    @property
    def all_classes(self) -> bool:
        """Whether the auxiliaries have outputs of all classes from the start, or those of the base task only."""
        return self._fidelity.aux_classes == "all"

    def build(self, solver: Solver, stream: Stream) -> None:
        """Add the auxiliaries to a solver, still without outputs; none where no stage but the last trains."""
        stages = len(solver.backbone.stages)
        if stages < 2 and not solver.backbone.is_frozen:
            raise EtagError(
                "embedding distillation needs a backbone with two stages or more, this one has one: set "
                "model.train=head, or choose another model.backbone, or the method without it."
            )
        last = stages if self.options.last_stage else stages - 1
        solver.add_auxiliaries(last, stream, short=self.options.branches == "short")
        solver.views_in_statistics = self._fidelity.backbone_batch_norm == "views"

    def add_outputs(self, solver: Solver, classes: int, stream: Stream) -> None:
        """Give every auxiliary one output per class and view."""
        for number, auxiliary in enumerate(solver.auxiliaries):
            auxiliary.head.grow(classes * self.transforms.count, stream.torch_generator("auxiliary", number))

    def remove_last_stage_auxiliary(self, solver: Solver) -> None:
        """Remove the auxiliary behind the last stage, if there is one: only the base task uses it."""
        del solver.auxiliaries[len(solver.backbone.stages) - solver.backbone.frozen - 1 :]

    def trains_auxiliaries(self, task: Task) -> bool:
        """Whether the weights of the auxiliaries are trained in this task."""
        return task.index == 0 or self.options.after_base == "trained"

    def terms(self, task: Task, solver: Solver) -> list[Term]:
        """Eq. (2) at the base task, Eq. (4) after it."""
        return [self.distillation_term(task, solver)] if task.index else [self.cross_entropy_term()]

    def cross_entropy_term(self) -> Term:
        """Eq. (2): cross-entropy of the auxiliaries over all pairs of class and view."""

        def compute(step: StepData) -> Tensor:
            return auxiliary_cross_entropy(step.student.auxiliary, require(step.views.labels))

        return Term("aux_ce", compute, student_need=Need.AUXILIARY, identity="cross-entropy of auxiliaries")

    def distillation_term(self, task: Task, solver: Solver) -> Term:
        """Eq. (4): divergence of the auxiliaries from the teacher's, for all stages but the last."""
        count, weight = len(solver.backbone.stages) - solver.backbone.frozen - 1, self.options.lambda_kl

        def compute(step: StepData) -> Tensor:
            student, teacher = step.student.auxiliary[:count], step.teacher.auxiliary[:count]
            return auxiliary_divergence(student, teacher, self.options.tau)

        weight = self._fidelity.class_ratio(task) if weight is None else weight
        return Term("aux_kl", compute, weight, student_need=Need.AUXILIARY, teacher_need=Need.AUXILIARY)
