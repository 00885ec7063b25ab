"""PASS: prototype augmentation and self-supervision (Zhu et al., 2021)."""

from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor

from etag.core.outputs import Need, require
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Plan, StepData, Term
from etag.data.views import ROTATIONS
from etag.losses.classification import cross_entropy
from etag.methods.base import Method, MethodInfo, MethodOptions
from etag.methods.parts.distillation import l2_term
from etag.methods.parts.drift import DriftOptions
from etag.methods.parts.prototypes import Prototypes
from etag.methods.registry import method


class PassOptions(MethodOptions):
    """Options of PASS."""

    head_growths: ClassVar[tuple[str, ...]] = ("growing",)
    tau: PositiveFloat = Field(0.1, description="temperature of the cross-entropies")
    l2_weight: NonNegativeFloat = Field(10.0, description="weight of the distillation of features")
    l2_reduction: Literal["mean_norm", "frobenius"] = Field(
        "frobenius", description="one norm of the batch, or the mean over images"
    )
    replay_weight: NonNegativeFloat = Field(10.0, description="weight of the cross-entropy on augmented prototypes")
    drift: DriftOptions | None = Field(
        None, description="learned drift compensation of the prototypes (LDC); null: none, as in PASS"
    )


@method(
    "pass",
    MethodInfo(
        title="PASS",
        color="#CC79A7",
        summary="rotations as classes of their own, replayed prototypes with noise, feature distillation",
        source="Zhu et al., 2021",
        stores="solver; one prototype and four rows of the head per class",
        head="linear, growing, four outputs per class",
    ),
)
class PASS(Method[PassOptions]):
    """An image of class y rotated r times has the label 4 y + r; predictions are made for upright images only."""

    Options = PassOptions
    transforms = ROTATIONS
    outputs_per_class = ROTATIONS.count

    def build(self, stream: Stream) -> None:
        """Store prototypes beside the solver."""
        super().build(stream)
        size, placement = self.solver.backbone.feature_size, self.context.placement
        self.parts["prototypes"] = self.prototypes = Prototypes(size, self.options.drift, placement)

    def phases(self, task: Task) -> Plan:
        """Train the solver, then add the prototypes of the new classes; with `drift`, old ones are moved first."""
        o, terms = self.options, [self.rotations()]
        if task.index:
            terms += [l2_term(o.l2_reduction, "all", o.l2_weight), self.replay(task)]
        yield self.solver_phase(task, terms)
        yield from self.prototypes.follow(task, self.teacher, self.solver, self.pass_batches, self.stream("drift"))
        result = yield self.features_pass("prototypes", task.train)
        self.prototypes.add_task(task, result["features"], result["labels"])

    def rotations(self) -> Term:
        """Cross-entropy over all classes and rotations."""

        def compute(step: StepData) -> Tensor:
            logits = self.solver.head(require(step.student.view_features))
            return cross_entropy(logits / self.options.tau, require(step.views.labels))

        return Term("ce", compute, student_need=Need.VIEW_FEATURES)

    def replay(self, task: Task) -> Term:
        """Cross-entropy on old prototypes with noise of the base classes' radius."""

        def compute(step: StepData) -> Tensor:
            labels, features = self.prototypes.noisy_replay(step.batch, task, step.batch.total)
            return cross_entropy(self.solver.head(features) / self.options.tau, labels * self.outputs_per_class)

        return Term("replay", compute, self.options.replay_weight)
