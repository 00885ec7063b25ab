"""Fine-tuning: learn each task and do nothing about forgetting."""

from typing import ClassVar, Self

from pydantic import model_validator

from etag.core.scenario import Task
from etag.core.work import Plan
from etag.methods.base import ExemplarMethodOptions, Method, MethodInfo
from etag.methods.registry import method


class FineOptions(ExemplarMethodOptions):
    """The bare form of what other methods build on."""

    head_kinds: ClassVar[tuple[str, ...]] = ("linear", "cosine")
    head_per_task: ClassVar[bool] = True

    @model_validator(mode="after")
    def _one_head_for_all(self) -> Self:
        if self.exemplars is not None and self.head.per_task:
            raise ValueError("exemplars need a head that old and new classes share: set head.per_task=false")
        return self


@method(
    "fine",
    MethodInfo(
        title="Fine",
        summary="fine-tuning: the lower reference",
        source="naive baseline",
        stores="solver; one row per class in the head",
        color="#737373",
    ),
)
class Fine(Method[FineOptions]):
    """Cross-entropy on the task's images over all classes seen so far."""

    Options = FineOptions
    learns_domains = True

    def phases(self, task: Task) -> Plan:
        """Train the solver; store exemplars if the options say so. Old rows of cosine and per-task heads are frozen."""
        shared_linear = self.options.head.kind == "linear" and not self.options.head.per_task
        yield self.solver_phase(task, [self.cross_entropy(task)], train_old_rows=shared_linear)
        yield from self.store_exemplars(task)

    def forget(self, label: int) -> str:
        """Remove a class from the head."""
        return self.remove_class(label)
