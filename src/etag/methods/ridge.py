"""Ridge regression onto the classes (ACIL: Zhuang et al., 2022); on random projections it is RanPAC (ranpac.py)."""

import torch
from pydantic import Field, PositiveFloat, PositiveInt

from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import DataPass, Plan
from etag.methods.base import MethodInfo
from etag.methods.closed_form import ClosedFormMethod, ClosedFormOptions
from etag.methods.parts.penalty import LeaveOneOut, PenaltyErrors, RidgeProblem, ridge_problem
from etag.methods.registry import method
from etag.models.prediction import LinearRule


class RidgeOptions(ClosedFormOptions):
    """Options of ridge regression."""

    projection: PositiveInt | None = Field(None, description="features become this many projections max(0, P' f)")
    penalty: PositiveFloat | None = Field(
        None, description="lambda; null: the best of a list by leave-one-out errors on the images of each task"
    )


INFO = MethodInfo(
    title="Ridge",
    color="#0072B2",
    summary="ridge regression of one-hot labels on frozen features, exact after any order of tasks",
    source="ACIL: Zhuang et al., 2022",
    stores="backbone; one sum of features per class, one matrix of second moments",
    head="linear, in closed form",
)


@method("ridge", INFO)
class Ridge(ClosedFormMethod[RidgeOptions]):
    """W = (X' X + lambda I)^-1 X' Y for centered features X and one-hot labels Y; the bias is not penalized. Both
    products are sums over images, so after any order of tasks the weights are those of joint training."""

    Options = RidgeOptions
    rule: LinearRule

    def new_rule(self, size: int, stream: Stream) -> LinearRule:
        """A linear rule; its projections are drawn once."""
        rule = LinearRule(size, self.options.projection)
        rule.store(directions=torch.randn(rule.directions.shape, generator=stream.torch_generator("projection")))
        return rule

    def build(self, stream: Stream) -> None:
        """Store the errors of all penalties that are tried, summed over the tasks so far."""
        super().build(stream)
        self.parts["penalty"] = self.errors = PenaltyErrors()
        self.stored_choices = "" if self.options.penalty else "the errors of the penalties that were tried"

    def problem(self) -> RidgeProblem:
        """The normal equations."""
        return ridge_problem(self.statistics)

    def choose(self, task: Task) -> Plan:
        """Add the leave-one-out errors of the task's images under each penalty."""
        if self.options.penalty is None:
            module = LeaveOneOut(self.solver.backbone, self.problem(), self.rule.transformed)
            sums = yield DataPass("penalty", module, self.pass_batches("penalty", task.train), reduce="sum")
            self.errors.add(sums["errors"])

    @property
    def penalty(self) -> float:
        """As given, or the one with the smallest error so far."""
        return self.options.penalty or self.errors.best or self.problem().spread

    def fit(self) -> None:
        """Solve the normal equations."""
        weight, bias = self.problem().solution(self.penalty)
        self.rule.store(weight=weight.float(), bias=bias.float())

    def remarks(self) -> dict[str, str]:
        """The penalty, too."""
        return super().remarks() | ({"penalty": f"{self.penalty:g}"} if len(self.statistics.count) else {})
