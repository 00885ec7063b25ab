"""Lucir: learning a unified classifier incrementally via rebalancing (Hou et al., 2019)."""

import math
from typing import Any, ClassVar

from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from etag.core.outputs import Need, require
from etag.core.scenario import Task
from etag.core.work import Plan, StepData, Term
from etag.losses.metric import margin_ranking
from etag.methods.base import ExemplarMethodOptions, Method, MethodInfo
from etag.methods.parts.distillation import cosine_term
from etag.methods.parts.imprinting import imprint
from etag.methods.parts.memory import ExemplarOptions
from etag.methods.registry import method
from etag.models.heads import CosineHead


class LucirOptions(ExemplarMethodOptions):
    """Options of Lucir."""

    changed_defaults: ClassVar[dict[str, Any]] = {"head": {"kind": "cosine"}}
    head_kinds: ClassVar[tuple[str, ...]] = ("cosine",)
    exemplars: ExemplarOptions = Field(ExemplarOptions(), description="images to store")
    weight: NonNegativeFloat = Field(5.0, description="weight of the less-forget term, times sqrt(old / new classes)")
    ranking_weight: NonNegativeFloat = Field(1.0, description="weight of the margin ranking loss")
    margin: NonNegativeFloat = Field(0.5, description="required lead of an old image's own class over new classes")
    hardest: PositiveInt = Field(2, description="number of new classes that an old image is compared with")
    imprint: bool = Field(True, description="initialize the rows of new classes with their mean features")


@method(
    "lucir",
    MethodInfo(
        title="Lucir",
        color="#009E73",
        summary="cosine head, distillation of feature directions, a margin between old and new classes",
        source="Hou et al., 2019",
        stores="solver, 20 images per class; one row per class in the head",
        head="cosine, growing; old rows frozen",
        exemplars=True,
    ),
)
class Lucir(Method[LucirOptions]):
    """Cross-entropy of scaled cosines; after the base task the two constraints."""

    Options = LucirOptions

    def phases(self, task: Task) -> Plan:
        """Imprint new rows, train the solver, store exemplars."""
        o, terms = self.options, [self.cross_entropy(task)]
        if task.index:
            if o.imprint:
                features = self.features_pass("imprint", task.train)
                yield from imprint(self.solver.head, task, features, self.stream("imprint"))
            terms.append(cosine_term("less_forget", o.weight * math.sqrt(task.num_old / task.num_new)))
            terms.append(self.ranking(task))
        yield self.solver_phase(task, terms, train_old_rows=False)
        yield from self.store_exemplars(task)

    def ranking(self, task: Task) -> Term:
        """The margin ranking loss: an old image is closer to its own class than to new ones."""
        o, head = self.options, self.solver.head
        assert isinstance(head, CosineHead)

        def compute(step: StepData) -> Tensor:
            cosines = head.cosines(require(step.student.feature))
            return margin_ranking(cosines, step.batch.labels, task.num_old, o.margin, o.hardest)

        return Term("ranking", compute, o.ranking_weight, student_need=Need.FEATURE)
