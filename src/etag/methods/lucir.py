"""Lucir: learning a unified classifier incrementally via rebalancing (Hou et al., 2019)."""

import math
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from etag.core.outputs import Need, require
from etag.core.scenario import Task
from etag.core.work import Plan, Step, Term
from etag.losses.metric import margin_ranking
from etag.methods.base import Method, MethodInfo, MethodOptions
from etag.methods.parts.distillation import cosine_term
from etag.methods.parts.imprinting import imprint
from etag.methods.parts.memory import ExemplarOptions
from etag.methods.registry import method
from etag.models.heads import CosineHead


class LucirOptions(MethodOptions):
    """Lucir's own options."""

    head: Literal["cosine"] = "cosine"
    exemplars: ExemplarOptions = ExemplarOptions()
    weight: NonNegativeFloat = Field(
        5.0, description="of the less-forget constraint, times sqrt(old / new classes); 10 for ImageNet"
    )
    ranking_weight: NonNegativeFloat = Field(1.0, description="of the margin ranking loss")
    margin: NonNegativeFloat = Field(0.5, description="by which an old image's own cosine shall exceed new classes'")
    hardest: PositiveInt = Field(2, description="new classes an old image is compared with")
    imprint: bool = Field(True, description="begin the rows of new classes with their mean features")


@method(
    "lucir",
    MethodInfo(
        title="Lucir",
        color="#009E73",
        summary="cosine head, likeness of feature directions, a margin between old and new classes",
        source="Hou et al., 2019",
        stores="solver, 20 images per class; a row per class in the head",
        head="cosine, growing; old rows frozen",
        exemplars=True,
    ),
)
class Lucir(Method):
    """Cross-entropy of scaled cosines; after the base task the two constraints."""

    Options = LucirOptions

    def phases(self, task: Task) -> Plan:
        """Imprint new rows, train, look for exemplars."""
        o, terms = self.options, [self.classification(task)]
        if task.index:
            if o.imprint:
                yield from imprint(self, task)
            terms.append(cosine_term("less_forget", o.weight * math.sqrt(task.old / task.new)))
            terms.append(self.ranking(task))
        yield self.solver_phase(task, terms, old_classes=False)
        yield from self.remember(task)

    def ranking(self, task: Task) -> Term:
        """Old images' own cosines above those of new classes."""
        o, head = self.options, self.solver.head
        assert isinstance(head, CosineHead)

        def compute(step: Step) -> Tensor:
            cosines = head.cosines(require(step.student.feature))
            return margin_ranking(cosines, step.batch.labels, task.old, o.margin, o.hardest)

        return Term("ranking", compute, o.ranking_weight, student=Need.FEATURE)
