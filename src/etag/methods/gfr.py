"""GFR: generative feature replay (Liu et al., 2020), with the paper's conditional VAE as its generator."""

from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt, field_validator, model_validator
from torch import Tensor

from etag.core.errors import EtagError
from etag.core.options import TrainOptions
from etag.core.outputs import Outputs
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Phase, Plan, Term
from etag.losses.classification import new_cross_entropy_weights
from etag.losses.generation import generator_weights
from etag.methods.base import MethodInfo, MethodOptions
from etag.methods.parts.adversarial import AdversarialOptions, AdversarialReplay
from etag.methods.parts.distillation import l2_term
from etag.methods.parts.prototypes import PrototypeOptions, PrototypeReplay
from etag.methods.parts.ratio import Ratio, class_ratio
from etag.methods.parts.refinement import head_phase
from etag.methods.parts.replay import ReplayingMethod, generator_by_name, replay_term
from etag.methods.parts.variational import VariationalOptions, VariationalReplay
from etag.methods.registry import method

AnyGenerator = Annotated[VariationalOptions | AdversarialOptions | PrototypeOptions, Field(discriminator="kind")]
REPLAYS: dict[str, type[Any]] = {"cvae": VariationalReplay, "wgan": AdversarialReplay, "prototypes": PrototypeReplay}


class GfrOptions(MethodOptions):
    """Options of GFR, eTag and what lies between; the defaults follow the eTag paper (docs/fidelity.md)."""

    batch_norm: Literal["train", "frozen"] = "frozen"
    head: Literal["growing", "fixed"] = "growing"
    guidance: bool = Field(
        False, description="let the frozen classifier guide the VAE's training (third line of Eq. 6)"
    )
    lambda_ce: NonNegativeFloat | None = Field(None, description="of Eq. (5); None is m_old / m_new")
    lambda_kd: NonNegativeFloat | None = Field(None, description="of Eq. (3) in (9); None is m_old / m_new")
    lambda_vae: NonNegativeFloat | None = Field(None, description="of Eq. (10); None is m_old / m_new")
    ratio: Ratio = Field("exact", description="m_old / m_new, or the release's base // new + task - 1")
    ce_normalize: bool = Field(False, description="divide Eq. (5) by 1 + lambda_ce, as the release does")
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
    refit: TrainOptions | None = Field(
        None,
        description="after a later task's solver train the head once more, alone, on features of its images beside "
        "replayed ones, weighed as in Eq. (5): short training leaves it behind the backbone",
    )
    generator: AnyGenerator = Field(
        VariationalOptions(), description="cvae, wgan or prototypes, by `kind`; a name alone takes its defaults"
    )

    _by_name = field_validator("generator", mode="before")(generator_by_name)

    @model_validator(mode="after")
    def _guides_a_vae(self) -> Self:
        if self.guidance and self.generator.kind != "cvae":
            raise ValueError(f"guidance is for the conditional VAE: set guidance=false with {self.generator.kind}")
        return self


@method(
    "gfr",
    MethodInfo(
        title="GFR",
        color="#0072B2",
        summary="feature distillation and replayed features from a generator",
        source="Liu et al., 2020; generator as in the eTag paper",
        stores="solver, generator; a row per class in head and generator",
        generator="conditional VAE on features (or its own WGAN: generator=wgan)",
    ),
)
class GFR(ReplayingMethod):
    """The solver first, with the old generator's features; then the generator, on the frozen solver's features."""

    Options = GfrOptions
    forgets = True

    replays: ClassVar[dict[str, type[Any]]] = REPLAYS

    def made_size(self) -> int:
        """Of a feature."""
        return self.solver.backbone.feature_size

    def phases(self, task: Task) -> Plan:
        """Solver, features, generator."""
        yield self.solver_phase(task, self.terms(task))
        o = self.options.generator
        if o.kind == "prototypes":
            self.replay.learn(task, (yield self.features_pass("prototypes", task.train)))
        elif o.last_task or task.seen < self.context.classes:
            found = yield self.features_pass("features", task.train, o.feature_passes)
            if self.options.refit is not None and task.index:
                ratio = class_ratio(task, self.options.ratio)
                yield self._head_phase(task, found, self.options.refit, self.stream("refit"), ratio)
            weights = self.generator_weights(task)
            yield self.replay.phase(task, self.solver.head, found, weights, self.stream("generator"))
            self.replay.finish_task(task, found, self.stream("residuals"))

    def _head_phase(
        self, task: Task, found: dict[str, Tensor], training: TrainOptions, stream: Stream, replay_weight: float = 1.0
    ) -> Phase:
        """The head alone, on swept features of the task's images and on made ones."""
        passes = found["features"].view(-1, len(task.train), self.made_size())
        labels, head = found["labels"][: len(task.train)], self.solver.head
        placement, training = self.context.placement, training.for_task(task.index)
        return head_phase(head, self.replay, task, passes, labels, training, stream, placement, replay_weight)

    def refine(self, task: Task, number: int) -> Plan:
        """The backbone stays. The head learns features of the images beside made ones of all classes; then the
        generator learns them, and stays like itself otherwise."""
        o, stream = self.options.generator, self.stream("refine", number)
        if o.kind != "cvae":
            raise EtagError(f"generator={o.kind} cannot learn more of the classes it knows: cvae can.")
        self.replay.begin_task(task)
        found = yield self.features_pass("features", task.train, o.feature_passes)
        yield self._head_phase(task, found, o.train, stream.child("head"))
        given = len(found["labels"].unique())
        weights = generator_weights(max(1, task.seen - given) / given, guidance=self.options.guidance)
        yield self.replay.phase(task, self.solver.head, found, weights, stream.child("generator"))

    def forget(self, label: int) -> None:
        """In the generator too."""
        if self.options.generator.kind != "cvae":
            raise EtagError(f"generator={self.options.generator.kind} cannot forget a class: cvae can.")
        super().forget(label)
        self.replay.generator.drop(label)

    def terms(self, task: Task) -> list[Term]:
        """Eq. (1) at the base task; after it Eqs. (5) and (3)."""
        o = self.options
        if task.index == 0:
            return [self.classification(task, o.ce_new_support)]
        ratio = class_ratio(task, o.ratio)
        weights = new_cross_entropy_weights(ratio if o.lambda_ce is None else o.lambda_ce, o.ce_normalize)
        lambda_kd = o.kd_weight * (ratio if o.lambda_kd is None else o.lambda_kd)
        head, support = self.solver.head, o.ce_replay_support
        return [
            self.classification(task, o.ce_new_support, weights["ce"]),
            replay_term(self.replay, task, head, support, o.replay_batch, weights["replay"]),
            l2_term(o.l2_reduction, o.l2_views, lambda_kd),
        ]

    @torch.no_grad()
    def imagined(self, classes: int, each: int) -> tuple[Tensor, Outputs] | None:
        """Features, and what the head says of them."""
        generator, device = self.replay.generator, self.context.placement.device
        if not hasattr(generator, "decode"):  # prototypes: they are the same for all
            return None
        labels = torch.arange(classes).repeat_interleave(each)

        def normal(purpose: str, size: int) -> Tensor:
            draws = torch.randn(len(labels), size, generator=self.stream("imagined").generator(purpose))
            return draws.to(device)

        feature = self.replay.sample(generator, labels.to(device), normal)
        return labels, Outputs(feature=feature, logits=self.solver.head(feature))

    def generator_weights(self, task: Task) -> dict[str, float]:
        """Eq. (6) at the base task, Eq. (10) after it."""
        o, ratio, lambda_vae = self.options, 0.0, 0.0
        if task.index:
            ratio = class_ratio(task, o.ratio)
            lambda_vae = (ratio if o.lambda_vae is None else o.lambda_vae) * o.generator.old_match_weight
        if o.generator.kind == "wgan":
            return {"match": lambda_vae}
        normalize = o.generator.ce_current_weight == "normalized"
        return generator_weights(lambda_vae, ratio, o.guidance, normalize, o.generator.ce_old)
