"""The solver's objective: one module whose forward computes every term of a step."""

from collections.abc import Sequence
from functools import reduce
from operator import or_

from torch import nn

from etag.core.outputs import Need, Outputs
from etag.core.work import Batch, Step, Term, Terms
from etag.data.views import Views
from etag.models.solver import Solver, Teacher


class SolverObjective(nn.Module):
    """Student and teacher look at the batch once each; all terms are computed from what they say.

    A term of weight 0 is not computed: it is the base method, exactly.
    """

    def __init__(self, solver: Solver, teacher: Teacher | None, terms: Sequence[Term], views: Views) -> None:
        super().__init__()
        self._terms = [term for term in terms if term.weight]
        self._views = views
        self.need = reduce(or_, (term.student for term in self._terms), Need.NOTHING)
        self._teacher_need = reduce(or_, (term.teacher for term in self._terms), Need.NOTHING)
        self.solver, self.teacher = solver, teacher if self._teacher_need else None
        self._with_views = bool((self.need | self._teacher_need) & (Need.AUXILIARY | Need.VIEW_FEATURES))

    def forward(self, batch: Batch) -> Terms:
        """The weighted terms."""
        images, views = batch.inputs, 1
        if self._with_views:
            images, views = self._views.of(images), self._views.count
        teacher = Outputs()
        if self.teacher is not None:
            teacher = self.teacher.targets(images, self._teacher_need, views)
        step = Step(batch, self.solver(images, self.need, views), teacher)
        return {term.name: term.weight * term.compute(step) for term in self._terms}
