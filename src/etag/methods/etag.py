"""eTag: embedding distillation and task-oriented generation (the paper's Algorithm 1).

Per task two things are trained. The solver: by Eq. (8) at the base task, by Eq. (9) after it. Then the generator, a
conditional VAE of the frozen solver's features: by Eq. (6), and by Eq. (10) once there are old classes. GFR and the
paper's ablations B0 to B4 are this method with parts of it turned off (gfr.py).
"""

from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, NonNegativeFloat, field_validator, model_validator
from torch import Tensor

from etag.core.outputs import require
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Plan, Term
from etag.methods.base import Method, MethodInfo, MethodOptions
from etag.methods.parts.adversarial import AdversarialOptions
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.distillation import l2_term
from etag.methods.parts.embedding import EmbeddingOptions
from etag.methods.parts.fidelity import FidelityOptions
from etag.methods.parts.gaussians import GaussianGenerator, GaussianOptions
from etag.methods.parts.generators import normal_sampler, options_by_kind, replay_term
from etag.methods.parts.prototypes import PrototypeOptions
from etag.methods.parts.refit import RidgeRefit, TrainedRefit, head_phase
from etag.methods.parts.variational import VariationalOptions
from etag.methods.registry import method
from etag.models.prediction import PredictionRule

GeneratorOptions = Annotated[
    VariationalOptions | AdversarialOptions | GaussianOptions | PrototypeOptions, Field(discriminator="kind")
]


class EtagOptions(MethodOptions):
    """Options of eTag; the defaults follow the paper (docs/fidelity.md has every choice and its reason)."""

    # `embedding` is on by default (see the field below). It is repeated here for `resolve`: before pydantic has filled
    # in any defaults, it must know whether embedding distillation is on, for a preset's section `with_embedding`
    changed_defaults: ClassVar[dict[str, Any]] = {"embedding": {}}
    batch_norm: Literal["train", "frozen"] = Field("frozen", description="BatchNorm statistics after the base task")
    embedding: EmbeddingOptions | None = Field(EmbeddingOptions(), description="embedding distillation; null: none")
    guidance: bool = Field(True, description="the head, just trained and now frozen, guides the VAE (Eq. 6, line 3)")
    lambda_ce: NonNegativeFloat | None = Field(None, description="weight of replay in Eq. (5); null: old / new classes")
    lambda_l2: NonNegativeFloat | None = Field(
        None, description="weight of Eq. (3), feature distillation; null: old / new classes"
    )
    lambda_vae: NonNegativeFloat | None = Field(
        None, description="weight of Eq. (7), likeness to the old VAE; null: old / new classes"
    )
    refit: TrainedRefit | RidgeRefit | None = Field(
        None,
        discriminator="kind",
        description="fit the head alone once more, to features of new images and generated ones. Options of training: "
        "train it after each task but the base one, weighted as in Eq. (5). ridge: compute it after each task by ridge "
        "regression, equally many features per class, in place of training if the backbone is frozen",
    )
    generator: GeneratorOptions = Field(
        VariationalOptions(), description="cvae, wgan, gaussians or prototypes, by `kind` or by name alone"
    )
    answer: Literal["head", "distances"] = Field(
        "head", description="what predicts: the head, or FeCAM's distances to the distributions of generator=gaussians"
    )
    fidelity: FidelityOptions = Field(FidelityOptions(), description="paper or authors' release")

    _generator_by_kind = field_validator("generator", mode="before")(options_by_kind("cvae"))
    _refit_by_kind = field_validator("refit", mode="before")(options_by_kind("train"))

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.guidance and self.generator.kind != "cvae":
            raise ValueError(f"guidance needs the conditional VAE: set guidance=false with {self.generator.kind}")
        if self.answer == "distances" and self.generator.kind != "gaussians":
            raise ValueError("answer=distances needs the distributions of the classes: set generator=gaussians")
        if self.computes_head and self.generator.kind == "prototypes":
            raise ValueError("refit=ridge needs features that vary: choose generator=cvae, wgan or gaussians")
        if self.computes_head and (self.head.growth == "fixed" or not self.head.bias):
            raise ValueError("refit=ridge computes a head for the seen classes, with a bias: set head to its defaults")
        return self

    @property
    def computes_head(self) -> bool:
        """Whether the head is computed after each task: what it was trained to is then replaced."""
        return isinstance(self.refit, RidgeRefit)


INFO = MethodInfo(
    title="eTag",
    summary="embedding distillation and task-oriented generation: no exemplars, no prototypes",
    source="the eTag paper, Algorithm 1",
    stores="solver, auxiliary classifiers of the base classes, generator; one row per class in head and generator",
    generator="conditional VAE on features, guided by the frozen classifier",
    color="#D55E00",
)


# a recipe puts what eTag and GFR share, such as the generator, into its section gfr: eTag reads that section too
@method("etag", INFO, sections=("gfr", "etag"))
class ETag(Method[EtagOptions]):
    """The solver first, with features of old classes from the old generator; then the generator."""

    Options = EtagOptions
    has_e_variant = False

    @property
    def fidelity(self) -> FidelityOptions:
        """Which choices follow the paper, and which the authors' published code."""
        return self.options.fidelity

    def build(self, stream: Stream) -> None:
        """Solver and generator."""
        super().build(stream)
        o, backbone, placement = self.options, self.solver.backbone, self.context.placement
        size, signed = backbone.feature_size, backbone.signed
        self.add_generator(o.generator.create(size, stream, placement, o.fidelity, signed=signed))

    def phases(self, task: Task) -> Plan:
        """Algorithm 1: train the solver; compute its features; train the generator on them."""
        o, generator, head, placement = self.options, require(self.generator), self.solver.head, self.context.placement
        if not (o.computes_head and self.solver.backbone.is_frozen):  # otherwise nothing would remain of the training
            yield self.solver_phase(task, self.solver_terms(task))
        yield from generator.follow(task, self.teacher, self.solver, self.pass_batches, self.stream("drift"))
        refit = o.refit if o.refit is not None and o.refit.applies_to(task) else None
        learns = generator.trains_in(task, self.context.classes)
        if refit is None and not learns:
            return
        result = yield self.features_pass("features", task.train, generator.augmented_passes)
        features = CachedFeatures.from_pass(result, len(task.train))
        if refit is not None:
            weight = self.weight(o.lambda_ce, task)
            yield from refit.plan(head, generator, task, features, weight, self.stream("refit"), placement)
        if learns:
            yield from generator.learn(task, features, self.generator_weights(task), head, self.stream())

    def solver_terms(self, task: Task) -> list[Term]:
        """Eq. (8) at the base task, Eq. (9) after it."""
        o, fidelity, head = self.options, self.options.fidelity, self.solver.head
        if task.index == 0:
            terms = [self.cross_entropy(task, fidelity.ce_new)]  # Eq. (1)
            if self.embedding is not None:
                terms.append(self.embedding.cross_entropy_term())  # Eq. (2)
            return terms
        lambda_ce, generator = self.weight(o.lambda_ce, task), require(self.generator)
        scale = 1 / (1 + lambda_ce) if fidelity.normalize_ce else 1.0
        terms = [
            self.cross_entropy(task, fidelity.ce_new, scale),  # Eq. (5), new images
            replay_term(generator, task, head, fidelity.ce_replay, scale * lambda_ce),  # Eq. (5), old features
            l2_term(fidelity.l2_reduction, fidelity.l2_views, self.weight(o.lambda_l2, task)),  # Eq. (3)
        ]
        if self.embedding is not None:
            terms.append(self.embedding.distillation_term(task, self.solver))  # Eq. (4)
        return terms

    def embedding_terms(self, task: Task) -> list[Term]:  # noqa: ARG002
        """Empty: `solver_terms` has them already."""
        return []

    def prediction_rule(self) -> PredictionRule:
        """The head; or, if it was chosen, the distances."""
        if self.options.answer == "head":
            return super().prediction_rule()
        generator = self.generator
        assert isinstance(generator, GaussianGenerator)  # EtagOptions allows no other
        return generator.network.rule()

    def generator_weights(self, task: Task) -> dict[str, float]:
        """Eq. (6) at the base task, Eq. (10) after it: the weight of each term of the VAE's loss."""
        guide = float(self.options.guidance)
        if task.index == 0:
            return {"kl": 1.0, "recon": 1.0, "guide": guide}
        fidelity = self.options.fidelity
        new_share = 1 / (1 + fidelity.class_ratio(task))
        return {
            "kl": 1.0,  # KL(q(z | f, y) || N(0, I))
            "recon": 1.0,  # -log p(f | y, z)
            # the classifier's cross-entropy
            "guide": guide * (new_share if fidelity.guide_weight == "normalized" else 1.0),
            "guide_old": guide * (1 - new_share) if fidelity.guide_old else 0.0,
            "match": self.weight(self.options.lambda_vae, task),  # the old VAE's features of old classes, Eq. (7)
        }

    def weight(self, option: float | None, task: Task) -> float:
        """A weight lambda: as given, or m_old / m_new, the number of old classes per new class."""
        return self.options.fidelity.class_ratio(task) if option is None else option

    # -- more than the paper ---------------------------------------------------------------------------------------

    def update(self, task: Task, number: int) -> Plan:
        """Learn more images of known classes: train head and generator on their features, and on generated ones of all
        other classes, so that every class has the same share."""
        generator, head, stream = require(self.generator), self.solver.head, self.stream("update", number)
        training, placement = generator.update_training, self.context.placement
        generator.begin_task(task)
        result = yield self.features_pass("features", task.train, generator.augmented_passes)
        features = CachedFeatures.from_pass(result, len(task.train))
        updated = set(features.labels.tolist())
        others = torch.tensor([label for label in range(task.num_seen) if label not in updated]).to(features.labels)
        shares = len(updated) / task.num_seen, len(others) / task.num_seen
        yield head_phase(head, generator, task, features, training, others, shares, stream.child("head"), placement)
        weights = {"kl": 1.0, "recon": 1.0, "guide": float(self.options.guidance)}
        weights["match"] = max(1, len(others)) / len(updated)  # as lambda_vae: other classes per updated class
        yield from generator.learn(task, features, weights, head, stream)

    @property
    def cannot_continue_after_run(self) -> bool:
        """True if the last task does not train the generator."""
        return not require(self.generator).trains_in_last_task

    def forget(self, label: int) -> str:
        """Remove a class from head, auxiliaries and generator."""
        return self.remove_class(label)

    @torch.no_grad()
    def generate_features(self, labels: Tensor) -> Tensor | None:
        """Features of these classes from the current generator; None for prototypes."""
        stream, device = self.stream("generated features"), self.context.placement.device
        normal = normal_sampler(stream, len(labels), device)
        return require(self.generator).sample(labels.to(device), normal)
