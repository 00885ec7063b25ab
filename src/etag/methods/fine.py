"""Fine-tuning: learn each task and do nothing about the old ones."""

from etag.core.scenario import Task
from etag.core.work import Plan
from etag.methods.base import Card, Method, method
from etag.methods.parts.classification import classification


@method("fine", Card("fine-tuning: the lower reference", "naive baseline", "solver"))
class Fine(Method):
    """Cross-entropy on the task at hand over all classes seen so far."""

    def phases(self, task: Task) -> Plan:
        """One."""
        yield self.solver_phase(task, [classification(task)])
