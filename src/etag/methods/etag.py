"""eTag: embedding distillation and task-oriented generation (the paper's Algorithm 1)."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from etag.core.outputs import Need, needed
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Plan, Step, Term
from etag.losses.embedding import base_weights, feature_distance, solver_weights
from etag.losses.generation import generator_weights, new_weights
from etag.methods.base import Card, Context, Method, MethodOptions, method
from etag.methods.parts.classification import classification
from etag.methods.parts.embedding import EmbeddingDistillation, EmbeddingOptions
from etag.methods.parts.replay import FeatureReplay, GeneratorOptions


class EtagOptions(MethodOptions):
    """eTag's options; the defaults follow the paper (docs/fidelity.md has every choice and its reason)."""

    batch_norm: Literal["train", "frozen"] = "frozen"
    lambda_ce: NonNegativeFloat | None = Field(None, description="of Eq. (5); None is m_old / m_new")
    lambda_kd: NonNegativeFloat | None = Field(None, description="of Eq. (9); None is m_old / m_new")
    lambda_vae: NonNegativeFloat | None = Field(None, description="of Eq. (10); None is m_old / m_new")
    ratio: Literal["exact", "integer"] = Field(
        "exact", description="m_old / m_new, or the release's base // new + task - 1"
    )
    ce_normalise: bool = Field(False, description="divide Eq. (5) by 1 + lambda_ce, as the release does")
    kd_weight: NonNegativeFloat = Field(1.0, description="factor on lambda_kd")
    l2_reduction: Literal["mean_norm", "frobenius"] = Field(
        "mean_norm",
        description="Eq. (3): mean over images of the norm, or the release's norm of the whole batch",
    )
    l2_views: Literal["plain", "all"] = Field("plain", description="Eq. (3) on the images, or on all their views")
    ce_new_support: Literal["seen", "new", "all"] = Field(
        "seen", description="outputs of the cross-entropy on new data; `new` is the paper to the letter"
    )
    ce_replay_support: Literal["seen", "old", "all"] = Field(
        "seen",
        description="outputs of the cross-entropy on replayed features; `old` is Eq. (5) to the letter",
    )
    replay_batch: PositiveInt | None = Field(None, description="features replayed a step; None is the batch size")
    embedding: EmbeddingOptions = EmbeddingOptions()
    generator: GeneratorOptions = GeneratorOptions()


def class_ratio(task: Task, kind: Literal["exact", "integer"]) -> float:
    """Old classes to new ones: lambda of Eqs. (5), (9), (10)."""
    return task.old / task.new if kind == "exact" else task.base // task.new + task.index - 1


@method(
    "etag",
    Card(
        summary="embedding distillation and task-oriented generation: no exemplars, no prototypes",
        source="the eTag paper, Algorithm 1",
        stores="solver, auxiliary classifiers, generator; a row per class in heads and generator",
        generator="conditional VAE on features",
    ),
)
class ETag(Method):
    """The solver first, with the old generator's features; then the generator, guided by the frozen solver."""

    Options = EtagOptions

    def __init__(self, options: EtagOptions, context: Context) -> None:
        self.embedding = EmbeddingDistillation(options.embedding)
        self.replay = FeatureReplay(options.generator, context)
        super().__init__(options, context)

    def build(self, stream: Stream) -> None:
        """Solver, auxiliaries, generator."""
        super().build(stream)
        self.embedding.build(self.solver, stream)
        self.replay.build(self.solver.backbone.feature_size, stream)

    def begin_task(self, task: Task) -> None:
        """The old generator is kept as the old solver is."""
        self.replay.begin_task(task)
        super().begin_task(task)

    def grow(self, classes: int) -> None:
        """In heads and generator."""
        super().grow(classes)
        stream = self.stream("grow")
        self.embedding.grow(self.solver, self.room_for(classes, self.embedding.growth), stream)
        if room := self.room_for(classes, self.options.head):
            self.replay.grow(room, stream)

    def phases(self, task: Task) -> Plan:
        """Solver, features, generator."""
        ratio = class_ratio(task, self.options.ratio)
        yield self.solver_phase(task, self.terms(task, ratio), self.embedding.views)
        if task.seen == self.context.classes and not self.options.generator.last_task:
            return
        swept = yield self.replay.features(task, self.solver, self.stream("features"))
        weights = self.generator_weights(task, ratio)
        yield self.replay.phase(task, self.solver.head, swept, weights, self.stream("generator"))

    def terms(self, task: Task, ratio: float) -> list[Term]:
        """Eq. (8) at the base task, Eq. (9) after it."""
        o = self.options
        if task.index == 0:
            weights = base_weights()
            final = classification(task, o.ce_new_support, weights["ce"])
            return [final, self.embedding.construction(weights["aux_ce"])]
        lambda_ce = ratio if o.lambda_ce is None else o.lambda_ce
        lambda_kd = ratio if o.lambda_kd is None else o.lambda_kd
        weights = solver_weights(lambda_ce, lambda_kd * o.kd_weight, o.ce_normalise)
        return [
            classification(task, o.ce_new_support, weights["ce"]),
            self.replay.term(task, self.solver.head, o.ce_replay_support, o.replay_batch, weights["replay"]),
            self.feature_distillation(weights["l2"]),
            *self.embedding.terms_after_base(self.solver, weights["kl"]),
        ]

    def feature_distillation(self, weight: float) -> Term:
        """Eq. (3)."""
        o, need = self.options, Need.FEATURE if self.options.l2_views == "plain" else Need.VIEW_FEATURES

        def compute(step: Step) -> Tensor:
            said = (step.student, step.teacher)
            student, teacher = (needed(s.feature if need is Need.FEATURE else s.view_features) for s in said)
            return feature_distance(student, teacher, o.l2_reduction)

        return Term("l2", compute, weight, student=need, teacher=need)

    def generator_weights(self, task: Task, ratio: float) -> dict[str, float]:
        """Eq. (6) at the base task, Eq. (10) after it."""
        o = self.options.generator
        if task.index == 0:
            return new_weights()
        normalise = o.ce_current_weight == "normalised"
        lambda_vae = ratio if self.options.lambda_vae is None else self.options.lambda_vae
        return generator_weights(lambda_vae * o.old_match_weight, ratio, normalise, o.ce_old)

    def parts(self) -> dict[str, nn.Module]:
        """Solver and generator."""
        return {"solver": self.solver, "generator": self.replay.generator}
