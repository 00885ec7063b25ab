"""Fine-tuning: learn each task and do nothing about the old ones."""

from typing import Literal, Self

from pydantic import Field, model_validator

from etag.core.scenario import Task
from etag.core.work import Plan
from etag.methods.base import Method, MethodInfo, MultiHeadOptions
from etag.methods.parts.memory import ExemplarOptions
from etag.methods.registry import method


class FineOptions(MultiHeadOptions):
    """The bare form of what other methods build on."""

    head: Literal["growing", "fixed", "multi", "cosine"] = "growing"  # type: ignore[assignment]
    exemplars: ExemplarOptions | None = Field(None, description="keep some images and train on them too")

    @model_validator(mode="after")
    def _one_head_for_all(self) -> Self:
        if self.exemplars is not None and self.head == "multi":
            raise ValueError("exemplars need a head that new and old classes share: choose another head than multi")
        return self


@method(
    "fine",
    MethodInfo(
        "fine-tuning: the lower reference",
        "naive baseline",
        "solver; a row per class in the head",
        title="Fine",
        color="#737373",
    ),
)
class Fine(Method):
    """Cross-entropy on the task at hand over all classes seen so far."""

    Options = FineOptions
    domains = forgets = True

    def phases(self, task: Task) -> Plan:
        """One, and a look for exemplars if any are kept."""
        yield self.solver_phase(
            task, [self.classification(task)], old_classes=self.options.head not in ("multi", "cosine")
        )
        yield from self.remember(task)
