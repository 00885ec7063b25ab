"""The solver's objective: one module whose forward computes every term of a step."""

from collections.abc import Sequence
from functools import reduce
from math import ceil
from operator import or_

from torch import nn

from etag.core.outputs import Need, Outputs, Views
from etag.core.work import Batch, Step, Term, Terms
from etag.data.views import ViewTransforms
from etag.models.solver import Solver, Teacher


class SolverObjective(nn.Module):
    """Student and teacher look at the batch once each; all terms are computed from what they say.

    A term of weight 0 is not computed: it is the base method, exactly.
    """

    def __init__(
        self,
        solver: Solver,
        teacher: Teacher | None,
        terms: Sequence[Term],
        views: ViewTransforms,
        views_per_image: int | None = None,
        image_share: float = 1.0,
    ) -> None:
        super().__init__()
        self._terms = [term for term in terms if term.weight]
        self._views, self._views_per_image, self._image_share = views, views_per_image, image_share
        self.need = reduce(or_, (term.student for term in self._terms), Need.NOTHING)
        self._teacher_need = reduce(or_, (term.teacher for term in self._terms), Need.NOTHING)
        self.solver, self.teacher = solver, teacher if self._teacher_need else None
        self._with_views = bool((self.need | self._teacher_need) & (Need.AUXILIARY | Need.VIEW_FEATURES))

    @property
    def static(self) -> tuple[nn.Module, ...]:
        """Stages and branches. What is compiled cannot be differentiated twice."""
        if any(term.second_order for term in self._terms):
            return ()
        solvers = [self.solver] if self.teacher is None else [self.solver, self.teacher.network]
        return tuple(part for solver in solvers for part in solver.static)

    def forward(self, batch: Batch) -> Terms:
        """The weighted terms."""
        shown, teacher = self._shown(batch), Outputs()
        if self.teacher is not None:
            teacher = self.teacher.targets(shown, self._teacher_need)
        step = Step(batch, shown, self.solver(shown, self.need), teacher)
        return {term.name: term.weight * term.compute(step) for term in self._terms}

    def _shown(self, batch: Batch) -> Views:
        """The images; where a term looks at views, those too, or a random share of them."""
        if not self._with_views:
            return Views(batch.inputs, len(batch.inputs))
        if self._views_per_image is None and self._image_share == 1:
            return self._views.of(batch.inputs, batch.labels)
        places, number = batch.draws.order("views", batch.total), self._views_per_image or self._views.count
        # equally many in every process: then the mean over processes is the mean over all
        of = places.argsort()[: max(1, round(self._image_share * len(places)))].sort().values
        return self._views.some(batch.inputs, batch.labels, self._views.choose(places[of], number), of)

    @property
    def fewest(self) -> int:
        """Images that a batch must have for BatchNorm: all that passes together must be two rows or more."""
        return 2 if self._views_per_image is None and self._image_share == 1 else ceil(4 / self._image_share)
