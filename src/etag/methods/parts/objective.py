"""The solver's objective: one module whose forward computes every loss term of a step."""

from collections.abc import Sequence
from functools import reduce
from math import ceil
from operator import or_

from torch import Tensor, nn

from etag.core.outputs import Need, Outputs, Views
from etag.core.work import Batch, StepData, Term, Terms
from etag.data.views import ViewTransforms
from etag.models.solver import Solver, Teacher


class SolverObjective(nn.Module):
    """Student and teacher process the batch once each; all terms are computed from their outputs. A term of weight 0 is
    not computed at all, so the result is exactly that of the method without it."""

    def __init__(
        self,
        solver: Solver,
        teacher: Teacher | None,
        terms: Sequence[Term],
        transforms: ViewTransforms,
        views_per_image: int | None = None,
        image_share: float = 1.0,
    ) -> None:
        super().__init__()
        self._terms = [term for term in terms if term.weight]
        self._transforms, self._views_per_image, self._image_share = transforms, views_per_image, image_share
        self.need = reduce(or_, (term.student_need for term in self._terms), Need.NOTHING)
        self._teacher_need = reduce(or_, (term.teacher_need for term in self._terms), Need.NOTHING)
        self.solver, self.teacher = solver, teacher if self._teacher_need else None
        self._with_views = bool((self.need | self._teacher_need) & (Need.AUXILIARY | Need.VIEW_FEATURES))
        self._right: Tensor | None = None  # which images of the last batch are classified correctly

    @property
    def compilable(self) -> tuple[nn.Module, ...]:
        """Stages and branches, which torch.compile may compile; none where a term needs second-order gradients."""
        if any(term.second_order for term in self._terms):
            return ()
        solvers = [self.solver] if self.teacher is None else [self.solver, self.teacher.network]
        return tuple(part for solver in solvers for part in solver.compilable)

    @property
    def identity(self) -> str | None:
        """What the loss is, besides the weights and the batch; None if a term does not say what it computes."""
        terms = [(term.name, term.weight, term.identity) for term in self._terms]
        if self.teacher is not None or any(identity is None for *_, identity in terms):
            return None
        views = (self._transforms.name, self._views_per_image, self._image_share, self._with_views)
        return repr((terms, self.need, views, self.solver.views_in_statistics, self.solver))

    def forward(self, batch: Batch) -> Terms:
        """The weighted terms."""
        views, teacher = self.solver.enter(self._views(batch)), Outputs()
        if self.teacher is not None:
            teacher = self.teacher.targets(views, self._teacher_need)
        student = self.solver(views, self.need)
        if student.logits is not None:
            self._right = student.logits.detach().argmax(1) == batch.labels
        step = StepData(batch, views, student, teacher)
        return {term.name: term.weight * term.compute(step) for term in self._terms}

    def accuracy(self) -> Tensor | None:
        """The share of the last batch that is classified correctly; None if no term needs the classifier's outputs."""
        return None if self._right is None else self._right.float().mean()

    def _views(self, batch: Batch) -> Views:
        """The images, and their views where a term needs them: all views, or a random share."""
        if not self._with_views:
            return Views(batch.inputs, len(batch.inputs))
        if self._views_per_image is None and self._image_share == 1:
            return self._transforms.all_views(batch.inputs, batch.labels)
        views_per_image = self._views_per_image or self._transforms.count
        places = batch.draws.places_in_shuffle("views", batch.total)
        # the rows with the lowest places, a random choice; each process chooses equally many, so that the mean over
        # processes is the mean over all chosen images
        image_rows = places.argsort()[: max(1, round(self._image_share * len(places)))].sort().values
        chosen = self._transforms.choose(places[image_rows], views_per_image)
        return self._transforms.selected_views(batch.inputs, batch.labels, chosen, image_rows)

    @property
    def smallest_batch(self) -> int:
        """The fewest images per batch with which BatchNorm can be trained: every batch that it sees needs two rows. The
        views other than the images are a batch of their own (`Solver._separate`). If views are drawn at random, only
        `image_share` of the images get views, and the view of an image may be the image itself: we ask for four images
        with views, which leaves a margin."""
        return 2 if self._views_per_image is None and self._image_share == 1 else ceil(4 / self._image_share)
