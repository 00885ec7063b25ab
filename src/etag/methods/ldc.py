"""LDC: learned drift compensation of class means, on LwF (Gomez-Villa et al., 2024).

Numbers are those of the authors' release (alviur/ldc on GitHub); docs/methods.md says what differs here.
"""

from pydantic import Field

from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Plan
from etag.methods.base import MethodInfo
from etag.methods.lwf import LwF, LwfOptions
from etag.methods.parts.drift import DriftOptions
from etag.methods.parts.prototypes import Prototypes
from etag.methods.registry import method
from etag.models.prediction import CosineRule, PredictionRule


class LdcOptions(LwfOptions):
    """Options of LDC: those of LwF, and how the class means follow the backbone."""

    drift: DriftOptions | None = Field(
        DriftOptions(), description="the map by which the class means follow the backbone; null: they stay"
    )


@method(
    "ldc",
    MethodInfo(
        title="LDC",
        color="#E69F00",
        summary="LwF; the nearest class mean predicts, and old means follow the backbone by a learned linear map",
        source="Gomez-Villa et al., 2024",
        stores="solver; one mean and one row of the heads per class",
        head="none for predictions: cosines to class means; LwF trains with one linear head per task",
    ),
)
class LDC(LwF):
    """The solver learns by LwF. Then a map p with p(f_old) = f_new is learned on the task's images, each old mean m
    becomes p(m), and the means of the new classes are added. The score of class k is cos(f, m_k)."""

    Options = LdcOptions
    options: LdcOptions

    def build(self, stream: Stream) -> None:
        """Store the class means beside the solver."""
        super().build(stream)
        size, placement = self.solver.backbone.feature_size, self.context.placement
        self.parts["prototypes"] = self.means = Prototypes(size, self.options.drift, placement)

    def phases(self, task: Task) -> Plan:
        """LwF; then move the old means, and add the new ones."""
        yield from super().phases(task)
        yield from self.means.follow(task, self.teacher, self.solver, self.pass_batches, self.stream("drift"))
        result = yield self.features_pass("prototypes", task.train)
        self.means.add_task(task, result["features"], result["labels"])

    def prediction_rule(self) -> PredictionRule:
        """Cosines to the means."""
        rule = CosineRule(self.solver.backbone.feature_size)
        rule.store(means=self.means.means)
        return rule
