"""Joint training: every task is learned together with the images of all tasks before it."""

from typing import ClassVar, Literal

from pydantic import Field

from etag.core.scenario import Task
from etag.core.work import Plan
from etag.methods.base import Method, MethodInfo, MethodOptions
from etag.methods.registry import method


class JointOptions(MethodOptions):
    """Options of joint training."""

    head_kinds: ClassVar[tuple[str, ...]] = ("linear", "cosine")
    start: Literal["warm", "scratch"] = Field("warm", description="from the previous solver, or anew at each task")


@method(
    "joint",
    MethodInfo(
        title="Joint",
        summary="training on the images of all tasks: the upper reference",
        source="Chen and Liu, 2018",
        stores="solver, all images",
        all_data=True,
        color="#000000",
    ),
)
class Joint(Method[JointOptions]):
    """Cross-entropy over all classes seen so far, on the images of all of them."""

    Options = JointOptions
    learns_domains = True

    def begin_task(self, task: Task) -> None:
        """Create new networks first, if each task starts from scratch."""
        if self.options.start == "scratch":
            self.build_after(self.task_sizes)
            self.load_weights()
        super().begin_task(task)

    def phases(self, task: Task) -> Plan:
        """Train the solver."""
        yield self.solver_phase(task, [self.cross_entropy(task)])
