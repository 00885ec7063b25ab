"""Embedding distillation: auxiliary classifiers behind the stages, on self-supervised views (Eqs. 2 and 4).

Any method with a staged solver can have it: the prefix `e`, or the option `embedding`, adds its terms to the method's
own solver phase, in the same pass.
"""

from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from etag.core.errors import EtagError
from etag.core.options import Options
from etag.core.outputs import Need, require
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Step, Term
from etag.data.views import VIEW_TRANSFORMS, ViewsName
from etag.losses.embedding import auxiliary_cross_entropy, auxiliary_divergence
from etag.methods.parts.ratio import Ratio, class_ratio
from etag.models.solver import Solver

Growth = Literal["growing", "base", "fixed"]


class EmbeddingOptions(Options):
    """Auxiliary classifiers and their distillation."""

    weight: NonNegativeFloat = Field(1.0, description="factor on all it adds; 0 is the method without it")
    tau: PositiveFloat = Field(3.0, description="temperature of Eq. (4)")
    lambda_kd: NonNegativeFloat | None = Field(
        None, description="weight of Eq. (4) in Eq. (9); None is m_old / m_new"
    )
    ratio: Ratio = Field("exact", description="m_old / m_new, or the release's base // new + task - 1")
    views: ViewsName = Field("rotation", description="the self-supervised task; `none` is the images alone")
    views_per_image: PositiveInt | None = Field(
        None,
        description="views of each image that a step looks at, drawn at random, all equally often; None is all of "
        "them. What a step minimizes is right on average (but for norms of a whole batch, which depend on its size)",
    )
    image_share: float = Field(
        1.0, gt=0, le=1, description="share of the images whose views a step looks at, drawn at random"
    )
    branches: Literal["full", "short"] = Field(
        "full",
        description="auxiliaries repeat the stages that follow theirs (the paper), or are short: one block or "
        "convolution a stage",
    )
    after_base: Literal["trained", "frozen"] = Field(
        "trained",
        description="after the base task the auxiliaries learn with the solver (the paper), or stay as they are: "
        "then only the stages before them can bring what they say near the teacher's",
    )
    num_aux: PositiveInt | Literal["all"] | None = Field(
        None,
        description="auxiliaries trained at the base task; None is one for each stage but the last, which are the "
        "only ones ever distilled; all is one for each stage",
    )
    aux_new: Literal["none", "ce", "fixed"] = Field(
        "none",
        description="new classes in the auxiliaries: none (they keep the base classes), ce (they grow and Eq. (2) "
        "is trained on new data too), fixed (the release: all outputs are declared and trained at the base task)",
    )
    batch_norm: Literal["images", "views"] = Field(
        "images",
        description="whose statistics the backbone's BatchNorm follows in training: those of the images themselves, "
        "as without the auxiliaries, or, as in the release, of all views. (Methods that look at maps always take the "
        "first, those whose own terms look at all views the second)",
    )


class EmbeddingDistillation:
    """The part: auxiliaries on a solver, and the terms they bring."""

    def __init__(self, options: EmbeddingOptions) -> None:
        self.options = options
        if options.after_base == "frozen" and options.aux_new != "none":
            raise EtagError(f"embedding.after_base=frozen leaves nothing to learn for aux_new={options.aux_new}.")
        self.views = VIEW_TRANSFORMS[options.views]
        if (options.views_per_image or 1) > self.views.count:
            raise EtagError(
                f"embedding.views_per_image={options.views_per_image} is more than there are: {self.views.name} has "
                f"{self.views.count}."
            )

    def build(self, solver: Solver, stream: Stream) -> None:
        """Put the auxiliaries in place, still without outputs."""
        stages = len(solver.backbone.stages)
        if stages < 2:
            raise EtagError(
                "embedding distillation needs a backbone of at least two stages, this one has one: choose another "
                "model.backbone, or the method without it."
            )
        count = stages if self.options.num_aux == "all" else self.options.num_aux or stages - 1
        if not stages - 1 <= count <= stages:
            raise EtagError(f"embedding.num_aux={count} does not fit: {stages - 1} or {stages} are possible here.")
        solver.add_auxiliaries(count, stream, short=self.options.branches == "short")
        solver.views_in_statistics = self.options.batch_norm == "views"

    @property
    def share(self) -> dict[str, Any]:
        """What a step looks at of all that there is."""
        return {"views_per_image": self.options.views_per_image, "image_share": self.options.image_share}

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

    def learn(self, task: Task) -> bool:
        """Whether the auxiliaries' own weights are trained in a task."""
        return task.index == 0 or self.options.after_base == "trained"

    def terms(self, task: Task, solver: Solver) -> list[Term]:
        """Eq. (2) at the base task; after it Eq. (4), and Eq. (2) too where the auxiliaries learn new classes."""
        o = self.options
        if task.index == 0:
            return [self.construction(o.weight)]
        ratio = class_ratio(task, o.ratio) if o.lambda_kd is None else o.lambda_kd
        terms = [self.distillation(solver, o.weight * ratio)]
        return [*terms, self.construction(o.weight)] if o.aux_new == "ce" else terms

    def construction(self, weight: float) -> Term:
        """Eq. (2). It runs over all outputs, so each of them gets a gradient before it is ever distilled."""

        def compute(step: Step) -> Tensor:
            return auxiliary_cross_entropy(step.student.auxiliary, require(step.shown.labels))

        return Term("aux_ce", compute, weight, student=Need.AUXILIARY)

    def distillation(self, solver: Solver, weight: float) -> Term:
        """Eq. (4), for all stages but the last."""
        count = len(solver.backbone.stages) - 1

        def compute(step: Step) -> Tensor:
            student, teacher = step.student.auxiliary[:count], step.teacher.auxiliary[:count]
            return auxiliary_divergence(student, teacher, self.options.tau)

        return Term("kl", compute, weight, student=Need.AUXILIARY, teacher=Need.AUXILIARY)
