"""PODNet: pooled outputs distillation (Douillard et al., 2020)."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from etag.core.options import Schedule, TrainOptions
from etag.core.outputs import Need, require
from etag.core.scenario import Task
from etag.core.work import Plan, StepData, Term
from etag.losses.metric import nca_loss, nca_loss_as_released
from etag.methods.base import ExemplarMethodOptions, Method, MethodInfo
from etag.methods.parts.distillation import cosine_term, pod_term
from etag.methods.parts.imprinting import imprint
from etag.methods.parts.memory import ExemplarOptions
from etag.methods.registry import method
from etag.models.heads import ProxyHead


class BalancedOptions(TrainOptions):
    """Fine-tuning of the head on balanced data: short, with half the solver's learning rate, constant."""

    epochs: PositiveInt = Field(20, description="passes over the exemplars")
    lr: PositiveFloat = Field(5e-4, description="learning rate")
    schedule: Schedule = Field("constant", description="learning-rate schedule")


class PodnetOptions(ExemplarMethodOptions):
    """Options of PODNet."""

    changed_defaults: ClassVar[dict[str, Any]] = {"head": {"kind": "proxies"}}
    head_kinds: ClassVar[tuple[str, ...]] = ("proxies",)
    exemplars: ExemplarOptions = Field(ExemplarOptions(), description="images to store")
    spatial: NonNegativeFloat = Field(3.0, description="weight of POD-spatial, times sqrt(seen / new); 8 for ImageNet")
    flat: NonNegativeFloat = Field(1.0, description="weight of POD-flat, times sqrt(seen / new); 10 for ImageNet")
    margin: NonNegativeFloat = Field(0.6, description="subtracted from the true class's similarity in the NCA loss")
    released_nca: bool = Field(False, description="the NCA loss as released: no margin, one term more")
    imprint: bool = Field(True, description="initialize the proxies of new classes with k-means of their features")
    balanced: BalancedOptions | None = Field(BalancedOptions(), description="head training on exemplars; null: none")


@method(
    "podnet",
    MethodInfo(
        title="PODNet",
        color="#E69F00",
        summary="distillation of pooled maps at every stage, several proxies per class",
        source="Douillard et al., 2020",
        stores="solver, 20 images per class; ten rows per class in the head",
        head="proxies, growing; old rows frozen except in the balanced phase",
        exemplars=True,
    ),
)
class PODNet(Method[PodnetOptions]):
    """NCA loss on the proxies; after the base task the two distillations, then the head on balanced data."""

    Options = PodnetOptions

    def check(self, task_sizes: Sequence[int]) -> None:
        """Pooled outputs need maps."""
        super().check(task_sizes)
        self.check_maps()

    def phases(self, task: Task) -> Plan:
        """Imprint new rows, train the solver, store exemplars, train the head on balanced data. The last phase leaves
        the backbone as it is, so the distillations, which only depend on it, are left out."""
        o, terms = self.options, [self.nca()]
        if task.index:
            if o.imprint:
                features = self.features_pass("imprint", task.train)
                yield from imprint(self.solver.head, task, features, self.stream("imprint"))
            factor = math.sqrt(task.num_seen / task.num_new)
            terms += [pod_term(o.spatial * factor), cosine_term("pod_flat", o.flat * factor)]
        yield self.solver_phase(task, terms, train_old_rows=False)
        yield from self.store_exemplars(task)
        if task.index and o.balanced is not None:
            yield self.balanced_phase([self.nca()], o.balanced)

    def nca(self) -> Term:
        """The classification loss."""
        o, head = self.options, self.solver.head
        assert isinstance(head, ProxyHead)

        def compute(step: StepData) -> Tensor:
            scaled, labels = require(step.student.logits), step.batch.labels
            if o.released_nca:
                return nca_loss_as_released(scaled, labels)
            return nca_loss(scaled, labels, head.scale, o.margin)

        return Term("nca", compute, student_need=Need.LOGITS)
