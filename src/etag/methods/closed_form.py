"""The common part of methods whose head is computed from class statistics: no head is trained, and none forgets."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, TypeVar

from pydantic import Field

from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import DataPass, Plan
from etag.methods.frozen_backbone import FrozenBackboneMethod, FrozenBackboneOptions
from etag.methods.parts.statistics import ClassStatistics, StatisticsCollector, shrunk
from etag.models.familiarity import Familiarity
from etag.models.prediction import PredictionRule

MAX_BYTES = 4 << 30  # of second moments per class; with more classes they share one matrix
SHRINKAGE = 0.5  # of the covariance that says how familiar a feature is; the same as SLDA's default


class ClosedFormOptions(FrozenBackboneOptions):
    """Options of methods whose head is computed from class statistics."""

    statistics: Literal["shared", "per_class"] = Field(
        "shared",
        description="second moments of all classes together, or of each class: then a class can be forgotten exactly, "
        "for 8 x (feature size)^2 bytes per class, as long as all classes together need at most 4 GiB",
    )


OptionsT = TypeVar("OptionsT", bound=ClosedFormOptions, covariant=True)


class ClosedFormMethod(FrozenBackboneMethod[OptionsT]):
    """Adds up statistics of the classes, and computes the rule from them (`fit`)."""

    has_e_variant: ClassVar[bool] = False
    updates_exactly = True
    stored_choices: str = ""  # what `choose` stores, if anything
    rule: PredictionRule
    familiarity: Familiarity
    changed: Sequence[int]  # the classes whose statistics are not those of the last `fit`

    def build(self, stream: Stream) -> None:
        """Store the statistics beside the solver."""
        super().build(stream)
        self.rule = self.new_rule(self.solver.backbone.output_size, stream)
        features = next(self.solver.parameters()).new_zeros(1, self.solver.backbone.output_size)
        size = self.rule.transformed(features).shape[1]
        self.familiarity = Familiarity(size)
        self.parts["statistics"] = self.statistics = ClassStatistics(size, self.options.statistics == "per_class")

    @abstractmethod
    def new_rule(self, size: int, stream: Stream) -> PredictionRule:
        """The prediction rule for features of this size, still without classes."""

    @abstractmethod
    def fit(self) -> None:
        """Compute the weights of `rule` from the statistics."""

    def fit_all(self) -> None:
        """Compute everything that predicts: `rule` and `familiarity`."""
        self.fit()
        s = self.statistics
        self.familiarity.fit(s.means, s.count, shrunk(s.covariance_within, SHRINKAGE))

    def choose(self, task: Task) -> Plan:  # noqa: ARG002
        """Choose what `fit` needs besides the statistics, from the task's images."""
        yield from ()

    def add_classes(self, classes: int) -> None:
        """Add empty sums."""
        super().add_classes(classes)
        if self.statistics.bytes_with(classes) > MAX_BYTES:
            self.statistics.share()
        self.statistics.grow(classes)

    def learn_task(self, task: Task) -> Plan:
        """Add the task's images to the statistics, and compute the rule."""
        labels = sorted(set(task.train.labels.tolist()))
        module = StatisticsCollector(self.solver.backbone, labels, self.statistics.per_class, self.rule.transformed)
        sums = yield DataPass("statistics", module, self.pass_batches("statistics", task.train), reduce="running")
        self.statistics.add(labels, sums)
        self.changed = labels
        yield from self.choose(task)
        self.fit_all()

    def update(self, task: Task, number: int) -> Plan:  # noqa: ARG002
        """Learn more images of known classes, as if they had been there from the start."""
        return self.learn_task(task)

    def forget(self, label: int) -> str:
        """Remove a class. Nothing is left with `statistics=per_class` and a backbone that was not trained with it."""
        remains = ["a backbone that was trained with its images"] if self.adapts and label < self.task_sizes[0] else []
        if label < self.solver.head.outputs:
            self.solver.head.remove_rows(label)
        if not self.statistics.remove_class(label):
            alone = " (with method.statistics=per_class nothing of that would be left)"
            remains.append(
                "how its features varied around their mean, in the second moments that all classes share"
                + (alone if self.options.statistics == "shared" else "")
            )
        if self.stored_choices:
            remains.append(f"{self.stored_choices}, sums over the images of all classes")
        self.remove_from_task_sizes(label)
        self.changed = range(self.seen)  # their numbers have changed
        self.fit_all()
        return "; ".join(remains)

    def remarks(self) -> dict[str, str]:
        """Also, whether classes share their second moments because there are too many of them."""
        if self.statistics.per_class or self.options.statistics == "shared":
            return super().remarks()
        return super().remarks() | {"statistics": "shared by all classes: one matrix each would need too much memory"}

    def prediction_rule(self) -> PredictionRule:
        """The rule as it was computed last."""
        return self.rule
