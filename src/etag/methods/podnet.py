"""PODNet: pooled outputs distillation (Douillard et al., 2020)."""

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from etag.core.options import TrainOptions
from etag.core.outputs import Need, require
from etag.core.scenario import Task
from etag.core.work import Plan, Step, Term
from etag.losses.metric import nca_loss, nca_loss_as_released
from etag.methods.base import Method, MethodInfo, MethodOptions
from etag.methods.parts.distillation import cosine_term, pod_term
from etag.methods.parts.imprinting import imprint
from etag.methods.parts.memory import ExemplarOptions
from etag.methods.registry import method
from etag.models.heads import LinearHead, ProxyHead


class BalancedOptions(TrainOptions):
    """The fine-tuning of the head on balanced data: short, at half the solver's rate, which stays."""

    epochs: PositiveInt = 20
    lr: PositiveFloat = 5e-4
    schedule: Literal["constant", "step", "milestones", "cosine", "onecycle", "plateau"] = "constant"


class PodnetOptions(MethodOptions):
    """PODNet's own options."""

    head: Literal["proxies"] = "proxies"
    exemplars: ExemplarOptions = ExemplarOptions()
    proxies: PositiveInt = Field(10, description="rows of the head per class")
    spatial: NonNegativeFloat = Field(
        3.0, description="weight of POD-spatial, times sqrt(seen / new); 8 for ImageNet"
    )
    flat: NonNegativeFloat = Field(1.0, description="weight of POD-flat, times sqrt(seen / new); 10 for ImageNet")
    margin: NonNegativeFloat = Field(0.6, description="of the NCA loss, on the positive")
    reference_quirks: bool = Field(
        False, description="the NCA loss as released: without margin, with one term too many"
    )
    imprint: bool = Field(True, description="begin the proxies of new classes with k-means of their features")
    balanced: BalancedOptions | None = Field(
        BalancedOptions(), description="fine-tuning of the head; None leaves it out"
    )


@method(
    "podnet",
    MethodInfo(
        title="PODNet",
        color="#E69F00",
        summary="likeness of pooled maps at every stage, several proxies per class",
        source="Douillard et al., 2020",
        stores="solver, 20 images per class; ten rows per class in the head",
        head="proxies, growing; old rows frozen but for the balanced phase",
        exemplars=True,
    ),
)
class PODNet(Method):
    """NCA loss on the proxies; after the base task the two distillations, then the head on balanced data."""

    Options = PodnetOptions

    def new_head(self, features: int) -> LinearHead:
        """Proxies."""
        return ProxyHead(features, self.options.proxies, scale=self.context.model.head_scale)

    def check(self, task_sizes: Sequence[int]) -> None:
        """Pooled outputs are those of maps."""
        super().check(task_sizes)
        self.check_maps()

    def phases(self, task: Task) -> Plan:
        """Imprint, train, look for exemplars, balance.

        The last leaves the backbone as it is, and with it all that the distillations look at: they are left out.
        """
        o, terms = self.options, [self.nca_loss()]
        if task.index:
            if o.imprint:
                yield from imprint(self, task)
            factor = math.sqrt(task.seen / task.new)
            terms += [pod_term(o.spatial * factor), cosine_term("pod_flat", o.flat * factor)]
        yield self.solver_phase(task, terms, old_classes=False)
        yield from self.remember(task)
        if task.index and o.balanced is not None:
            yield self.balanced_phase([self.nca_loss()], o.balanced)

    def nca_loss(self) -> Term:
        """The classification loss."""
        o, head = self.options, self.solver.head
        assert isinstance(head, ProxyHead)

        def compute(step: Step) -> Tensor:
            scaled, labels = require(step.student.logits), step.batch.labels
            if o.reference_quirks:
                return nca_loss_as_released(scaled, labels)
            return nca_loss(scaled, labels, head.scale, o.margin)

        return Term("nca", compute, student=Need.LOGITS)
