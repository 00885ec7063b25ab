"""Feature replay: a conditional VAE makes features of old classes; the frozen classifier guides its training."""

from typing import Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from etag.core.options import Options, TrainOptions
from etag.core.outputs import Need, needed
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Batch, Phase, Player, Step, Sweep, Term, Terms
from etag.data.batches import FeatureBatches, ImageBatches
from etag.losses.classification import cross_entropy
from etag.losses.generation import prior_divergence, reparametrise, squared_error
from etag.methods.base import Context
from etag.methods.parts.classification import outputs_in
from etag.models.cvae import ConditionalVAE
from etag.models.heads import LinearHead
from etag.models.initial import build
from etag.models.solver import Frozen, Solver


class GeneratorTrainOptions(TrainOptions):
    """The generator's training: Adam 1e-4, no weight decay."""

    lr: PositiveFloat = 1e-4
    weight_decay: NonNegativeFloat = 0.0
    validation: Literal[0] = Field(0, description="not for the generator: it is trained on all features")


class GeneratorOptions(Options):
    """The conditional VAE and its losses."""

    latent: PositiveInt = 200
    hidden: PositiveInt = 512
    train: GeneratorTrainOptions = GeneratorTrainOptions()
    feature_passes: PositiveInt = Field(
        10,
        description="augmented passes over the task whose features are cached; epochs use them in turn. As many as "
        "epochs is the release's fresh augmentation",
    )
    last_task: bool = Field(True, description="train the generator after the last task too (Algorithm 1)")
    recon: Literal["gaussian", "squared"] = Field(
        "gaussian", description="-log p of a unit Gaussian (half the squared error), or the release's whole"
    )
    ce_current_input: Literal["prior", "reconstruction"] = Field(
        "prior", description="what the classifier guides: samples (Eq. 6), or the release's reconstructions"
    )
    ce_current_support: Literal["seen", "new", "all"] = Field(
        "seen", description="outputs of the guiding cross-entropy; `new` is Eq. (6) to the letter"
    )
    ce_current_weight: Literal["one", "normalised"] = Field(
        "one", description="weight of the guidance: 1, or the release's 1 / (1 + lambda) after the base task"
    )
    ce_old: bool = Field(False, description="guide what is made of old classes too, at lambda / (1 + lambda)")
    old_match_weight: NonNegativeFloat = Field(1.0, description="factor on lambda_vae; 1e-3 in the release")
    old_match_reduction: Literal["gaussian", "batch_sum"] = Field(
        "gaussian",
        description="Eq. (7): -log p per feature, or the release's squared error summed over the batch",
    )


class FeatureReplay:
    """A part that replays old features from a generator, and trains that generator."""

    def __init__(self, options: GeneratorOptions, context: Context) -> None:
        self.options, self.context = options, context
        self.old: Frozen[ConditionalVAE] | None = None

    def build(self, features: int, stream: Stream) -> None:
        """A generator that knows no class yet."""
        o = self.options
        make = lambda: ConditionalVAE(features, o.latent, o.hidden)  # noqa: E731
        self.generator = build(make, stream.generator("generator"))

    def begin_task(self, task: Task) -> None:
        """Keep the generator of the previous task."""
        if task.index:
            self.old = Frozen(self.generator)

    def grow(self, classes: int, stream: Stream) -> None:
        """Make room for new classes."""
        self.generator.grow(classes, stream.generator("generator"))

    def term(
        self,
        task: Task,
        head: LinearHead,
        support: Literal["seen", "old", "all"],
        rows: int | None,
        weight: float,
    ) -> Term:
        """The second line of Eq. (5): cross-entropy of the head on made features of old classes."""
        first, end = outputs_in(support, task)

        def compute(step: Step) -> Tensor:
            labels, features = self.made(step.batch, task, rows or step.batch.total)
            return cross_entropy(head(features), labels, first, end)

        return Term("replay", compute, weight)

    @torch.no_grad()
    def made(self, batch: Batch, task: Task, rows: int) -> tuple[Tensor, Tensor]:
        """Labels drawn uniformly from the old classes, and features of them."""
        generator = needed(self.old).network
        labels = batch.draws.integers("replay labels", 0, task.old, rows)
        return labels, generator.decode(batch.draws.normal("replay codes", rows, generator.latent), labels)

    def features(self, task: Task, solver: Solver, stream: Stream) -> Sweep:
        """The features the generator learns from, of augmented images, by the solver just trained."""
        c, size = self.context, self.options.train.batch_size
        batches = ImageBatches(task.train, c.preprocess, 4 * size, stream, c.placement, shuffle=False)
        return Sweep("features", _Features(solver), batches, epochs=self.options.feature_passes)

    def phase(
        self,
        task: Task,
        head: LinearHead,
        swept: dict[str, Tensor],
        weights: dict[str, float],
        stream: Stream,
    ) -> Phase:
        """Train the generator on swept features with Eq. (6), or (10) where there are old classes."""
        training, placement = self.options.train.for_task(task.index), self.context.placement
        features = swept["features"]
        passes = features.view(self.options.feature_passes, len(task.train), features.shape[1])
        labels = swept["labels"][: len(task.train)]
        return Phase(
            name="generator",
            module=GeneratorObjective(self, head, task, weights),
            batches=FeatureBatches(
                passes, labels, training.batch_size, stream, placement, drop_last=training.drop_last
            ),
            players=(Player(list(self.generator.parameters())),),
            training=training,
        )


class _Features(nn.Module):
    """What the sweep computes."""

    def __init__(self, solver: Solver) -> None:
        super().__init__()
        self.solver = solver

    def forward(self, batch: Batch) -> Terms:
        return {"features": needed(self.solver(batch.inputs, Need.FEATURE).feature), "labels": batch.labels}


class GeneratorObjective(nn.Module):
    """Eqs. (6), (7) and (10): one decoder pass serves reconstruction, guidance and old knowledge."""

    def __init__(self, replay: FeatureReplay, head: LinearHead, task: Task, weights: dict[str, float]) -> None:
        super().__init__()
        self.generator, self.old, self.head = replay.generator, replay.old, head
        self._options, self._task, self._weights = replay.options, task, weights

    def forward(self, batch: Batch) -> Terms:
        """The weighted terms; `batch.inputs` are features."""
        o, task, weights, draws = self._options, self._task, self._weights, batch.draws
        first, end = outputs_in(o.ce_current_support, task)
        mean, log_variance = self.generator.encode(batch.inputs, batch.labels)
        posterior = reparametrise(mean, log_variance, draws.normal("posterior", batch.total, o.latent))
        asked = {"posterior": (posterior, batch.labels)}
        if o.ce_current_input == "prior":
            asked["prior"] = draws.normal("prior", batch.total, o.latent), batch.labels
        if weights["match"] or weights["guide_old"]:
            labels = draws.integers("old labels", 0, task.old, batch.total)
            asked["old"] = draws.normal("old codes", batch.total, o.latent), labels
        made = self._decode(asked)

        guided = made["prior" if o.ce_current_input == "prior" else "posterior"]
        terms = {
            "kl": prior_divergence(mean, log_variance),
            "recon": squared_error(made["posterior"], batch.inputs, half=o.recon == "gaussian"),
            "guide": cross_entropy(self.head(guided), batch.labels, first, end),
        }
        if weights["match"]:
            terms["match"] = self._match(made["old"], *asked["old"], shares=batch.total / len(batch.labels))
        if weights["guide_old"]:
            terms["guide_old"] = cross_entropy(self.head(made["old"]), asked["old"][1], 0, end)
        return {name: weights[name] * value for name, value in terms.items()}

    def _decode(self, asked: dict[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """What the decoder makes of each group of codes and labels, all in one pass."""
        codes, labels = (torch.cat(parts) for parts in zip(*asked.values(), strict=True))
        rows = [len(labels) for _, labels in asked.values()]
        return dict(zip(asked, torch.split(self.generator.decode(codes, labels), rows), strict=True))

    def _match(self, made: Tensor, codes: Tensor, labels: Tensor, shares: float) -> Tensor:
        """Eq. (7). The release's sum over the batch counts all processes, whose mean is what is stepped on."""
        with torch.no_grad():
            wanted = needed(self.old).network.decode(codes, labels)
        if self._options.old_match_reduction == "gaussian":
            return squared_error(made, wanted)
        return shares * squared_error(made, wanted, half=False, per_row=False)
