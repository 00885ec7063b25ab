"""Joint training: every task is learned together with all data of the tasks before it."""

from typing import Literal

from pydantic import Field

from etag.core.scenario import Task
from etag.core.work import Plan
from etag.methods.base import Method, MethodInfo, MethodOptions
from etag.methods.registry import method


class JointOptions(MethodOptions):
    """Joint's own option."""

    head: Literal["growing", "fixed", "cosine"] = "growing"
    start: Literal["warm", "scratch"] = Field("warm", description="go on from the last task's solver, or start anew")


@method(
    "joint",
    MethodInfo(
        "training on all data: the oracle",
        "Chen and Liu, 2018",
        "solver, all images",
        all_data=True,
        title="Joint",
        color="#000000",
    ),
)
class Joint(Method):
    """Cross-entropy over all classes seen so far, on the images of all of them."""

    Options = JointOptions
    domains = True

    def begin_task(self, task: Task) -> None:
        """Start anew first, if asked to."""
        if self.options.start == "scratch":
            self.rebuild(self.task_sizes)
        super().begin_task(task)

    def phases(self, task: Task) -> Plan:
        """One."""
        yield self.solver_phase(task, [self.classification(task)])
