"""EFC and EFC++: elastic feature consolidation (Magistri et al., 2024 and 2025).

After a task, the empirical feature matrix E says how much the outputs depend on each direction of the feature. In the
next task features may move freely where E is small. Each class is stored as a normal distribution of its features,
whose mean follows the backbone. EFC++ (the default) trains the backbone with the new classes alone, and then
re-balances the head on features of new and old classes; EFC trains both together. Formulas and numbers are those of
the authors' release (simomagi/elastic_feature_consolidation on GitHub); docs/methods.md says what differs here.
"""

from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator
from torch import Tensor

from etag.core.outputs import Need, require
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import DataPass, Plan, StepData, Term
from etag.data.views import ROTATIONS
from etag.losses.classification import cross_entropy
from etag.losses.drift import balanced_cross_entropy, weighted_drift
from etag.methods.base import Method, MethodInfo, MethodOptions
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.consolidation import FeatureMatrix
from etag.methods.parts.drift import DriftOptions, PairCollector
from etag.methods.parts.gaussians import ClassGaussians, check_linear
from etag.methods.parts.rebalance import RebalanceOptions
from etag.methods.registry import method


class EfcOptions(MethodOptions):
    """Options of EFC++ and EFC; the numbers are those of the authors' release."""

    changed_defaults: ClassVar[dict[str, Any]] = {"head": {"bias": False}}
    head_growths: ClassVar[tuple[str, ...]] = ("growing",)
    batch_norm: Literal["train", "frozen"] = Field("frozen", description="BatchNorm statistics after the base task")
    variant: Literal["efc++", "efc"] = Field(
        "efc++", description="efc++: the head is re-balanced after the backbone is trained; efc: both train together"
    )
    weight: NonNegativeFloat = Field(10.0, description="lambda: weight of the feature matrix in the penalty")
    damping: NonNegativeFloat = Field(0.1, description="eta: weight of every other move of a feature")
    sigma: PositiveFloat = Field(0.2, description="width of the neighborhood from which the drift of a mean is taken")
    rotation: bool = Field(
        True, description="at the base task, rotated images are classes of their own, in rows that are then removed"
    )
    rebalance: RebalanceOptions = Field(RebalanceOptions(), description="re-balancing of the head; variant=efc++")
    drift: DriftOptions | None = Field(
        None, description="means and covariances follow a learned map (LDC) instead of the weighted drift; null: no"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_linear(self.drift)
        return self


@method(
    "efc",
    MethodInfo(
        title="EFC++",
        color="#0072B2",
        summary="EFC++: features may move where the outputs do not depend on them; the head is re-balanced on class "
        "Gaussians after the backbone is trained (variant=efc, the first EFC: while it is trained)",
        source="Magistri et al., 2024 (EFC) and 2025 (EFC++)",
        stores="solver; one mean, one covariance and one row of the head per class; one matrix for all classes",
    ),
)
class EFC(Method[EfcOptions]):
    """The penalty (f_new - f_old)' (lambda E + eta I) (f_new - f_old); a mean and a covariance per class."""

    Options = EfcOptions
    transforms = ROTATIONS

    def build(self, stream: Stream) -> None:
        """Store the Gaussians and the feature matrix beside the solver."""
        super().build(stream)
        size = self.solver.backbone.feature_size
        self.gaussians = ClassGaussians(size, self.options.drift, self.context.placement)
        self.matrix = FeatureMatrix(size)
        self.parts |= {"gaussians": self.gaussians, "feature_matrix": self.matrix}

    def rotates(self, task: Task) -> bool:
        """Whether the task is learned with rotated images; a frozen backbone gets features in place of images."""
        return self.options.rotation and task.index == 0 and not self.solver.backbone.is_frozen

    def begin_task(self, task: Task) -> None:
        """At the base task, add rows for rotated images."""
        super().begin_task(task)
        if self.rotates(task):
            self.solver.head.grow(
                task.num_new * (ROTATIONS.count - 1), self.stream("grow").torch_generator("rotations")
            )
            self.move_to_device()

    def end_task(self, task: Task) -> None:
        """Remove the rows for rotated images."""
        if self.rotates(task):
            self.solver.head.remove_rows(task.num_new, task.num_new * (ROTATIONS.count - 1))

    def phases(self, task: Task) -> Plan:
        """Train the solver; move the old Gaussians; re-balance the head (EFC++); measure the matrix, add Gaussians."""
        plus = self.options.variant == "efc++"
        yield self.solver_phase(task, self.terms(task), train_old_rows=task.index == 0 or not plus)
        if self.teacher is None:
            result = yield self.features_pass("features", task.train)
            features = result["features"].float()
        else:
            pairs = PairCollector(self.teacher.network.backbone, self.solver.backbone)
            result = yield DataPass("features", pairs, self.pass_batches("features", task.train))
            old, features = result["features"].chunk(2, dim=1)
            yield from self.follow(task, old, features)
            if plus:
                yield from self.rebalance(task)
        self.matrix.measure(self.solver.head, features, task.num_seen)
        self.gaussians.add_task(task, features, result["labels"])

    def terms(self, task: Task) -> list[Term]:
        """Cross-entropy among the new classes, and the penalty; in EFC, also the prototype term over all classes."""
        if task.index == 0:
            return [self.rotations(task) if self.rotates(task) else self.cross_entropy(task)]
        terms = [self.cross_entropy(task, "new"), self.matrix.penalty(self.options.weight, self.options.damping)]
        return terms if self.options.variant == "efc++" else [*terms, self.prototype_term(task)]

    def rotations(self, task: Task) -> Term:
        """Cross-entropy on the images and their rotations: the rows of the upright classes come first, then three rows
        for each class."""
        classes, views = task.num_new, ROTATIONS.count

        def compute(step: StepData) -> Tensor:
            label = require(step.views.labels)
            upright, turns = label // views, label % views
            rows = torch.where(turns == 0, upright, classes + (views - 1) * upright + turns - 1)
            return cross_entropy(self.solver.head(require(step.student.view_features)), rows)

        return Term("ce", compute, student_need=Need.VIEW_FEATURES)

    def prototype_term(self, task: Task) -> Term:
        """EFC's second cross-entropy (PR-ACE): all classes, each with the same weight. It adapts the old rows."""

        def compute(step: StepData) -> Tensor:
            labels, features = self.gaussians.replay(step.batch, task, step.batch.total)
            new, old = require(step.student.logits), self.solver.head(features)
            return balanced_cross_entropy(new, step.batch.labels, old, labels, task.num_old / task.num_seen)

        return Term("replay", compute, student_need=Need.LOGITS)

    def follow(self, task: Task, old: Tensor, new: Tensor) -> Plan:
        """Move the means of old classes by the drift of the task's features; or means and covariances by LDC's map."""
        if self.options.drift is None:
            means, sigma = self.gaussians.means, self.options.sigma
            self.gaussians.move(weighted_drift(old, new, means, self.matrix.values, sigma))
        else:
            yield from self.gaussians.follow(task, self.teacher, self.solver, self.pass_batches, self.stream("drift"))

    def rebalance(self, task: Task) -> Plan:
        """Train the head alone, on features of augmented images and of old classes."""
        o, placement = self.options.rebalance, self.context.placement
        result = yield self.features_pass("augmented features", task.train, o.feature_passes)
        cached = CachedFeatures.from_pass(result, len(task.train))
        yield o.phase(task, cached, self.solver.head, self.gaussians, self.stream("head"), placement)

    @torch.no_grad()
    def generate_features(self, labels: Tensor) -> Tensor:
        """Features of these classes, drawn from their Gaussians."""
        noise = torch.randn(
            len(labels), self.gaussians.means.shape[1], generator=self.stream("generated features").torch_generator()
        )
        device = self.context.placement.device
        return self.gaussians.sample(labels.to(device), noise.to(device))
