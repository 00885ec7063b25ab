"""The paper's generator: a conditional VAE, whose training the frozen classifier may guide (Eqs. 6, 7 and 10)."""

from typing import Literal

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor, nn

from etag.core.outputs import require
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Batch, Terms
from etag.losses.classification import cross_entropy
from etag.losses.generation import pixel_cross_entropy, prior_divergence, reparameterize, squared_error
from etag.methods.parts.classification import outputs_in
from etag.methods.parts.replay import FeatureReplay, GeneratorOptions, Normal
from etag.models.cvae import ConditionalVAE


class VariationalOptions(GeneratorOptions):
    """The conditional VAE and its losses; those that begin with `ce` are for guided training."""

    kind: Literal["cvae"] = "cvae"
    recon: Literal["gaussian", "squared", "bernoulli"] = Field(
        "gaussian",
        description="-log p of a unit Gaussian (half the squared error), or the release's whole; of bits, for pixels",
    )
    residuals: bool = Field(
        False,
        description="add to what is made what the decoder's mean leaves out: a mean a class, and noise of one "
        "covariance for all classes. Without it made features differ less than real ones",
    )
    ce_current_input: Literal["prior", "reconstruction"] = Field(
        "prior", description="what the classifier guides: samples (Eq. 6), or the release's reconstructions"
    )
    ce_current_support: Literal["seen", "new", "all"] = Field(
        "seen", description="outputs of the guiding cross-entropy; `new` is Eq. (6) to the letter"
    )
    ce_current_weight: Literal["one", "normalized"] = Field(
        "one", description="weight of the guidance: 1, or the release's 1 / (1 + lambda) after the base task"
    )
    ce_old: bool = Field(False, description="guide what is made of old classes too, at lambda / (1 + lambda)")
    old_match_weight: NonNegativeFloat = Field(1.0, description="factor on lambda_vae; 1e-3 in the release")
    old_match_reduction: Literal["gaussian", "batch_sum"] = Field(
        "gaussian",
        description="Eq. (7): -log p per feature, or the release's squared error summed over the batch",
    )


class VariationalReplay(FeatureReplay[VariationalOptions, ConditionalVAE]):
    """The part."""

    def network(self, features: int) -> ConditionalVAE:
        """Encoder and decoder."""
        o = self.options
        return ConditionalVAE(features, o.latent, o.hidden, o.recon == "bernoulli", o.residuals)

    def sample(self, network: ConditionalVAE, labels: Tensor, normal: Normal) -> Tensor:
        """With what the decoder's mean leaves out, if that is kept."""
        made = super().sample(network, labels, normal)
        if network.residuals is None:
            return made
        return network.residuals.added(made, labels, normal("replay residuals", made.shape[1]))

    @torch.no_grad()
    def finish_task(self, task: Task, found: dict[str, Tensor], stream: Stream) -> None:
        """Look at what the decoder's mean leaves out of the new classes' features."""
        if self.generator.residuals is None:
            return
        features, labels = found["features"], found["labels"]
        codes = [
            torch.randn(len(labels), self.options.latent, generator=stream.generator(name)).to(features)
            for name in ("posterior", "prior")
        ]
        mean, log_variance = self.generator.encode(features, labels)
        left = features - self.generator.decode(reparameterize(mean, log_variance, codes[0]), labels)
        off = features - self.generator.decode(codes[1], labels)
        rows = [labels == label for label in range(task.old, task.seen)]
        covariance = torch.stack([left[own].T.cov(correction=0) for own in rows]).mean(0)
        self.generator.residuals.learn(torch.stack([off[own].mean(0) for own in rows]), covariance)

    def objective(self, task: Task, head: nn.Module, weights: dict[str, float]) -> nn.Module:
        """Eq. (6), or (10) where there are old classes."""
        return VariationalObjective(self, head, task, weights)


class VariationalObjective(nn.Module):
    """Eqs. (6), (7) and (10): one decoder pass serves reconstruction, guidance and old knowledge."""

    def __init__(self, replay: VariationalReplay, head: nn.Module, task: Task, weights: dict[str, float]) -> None:
        super().__init__()
        self.generator, self.old, self.head = replay.generator, replay.old, head
        self._options, self._task, self._weights = replay.options, task, weights

    def forward(self, batch: Batch) -> Terms:
        """The weighted terms; `batch.inputs` are features."""
        o, task, weights, draws = self._options, self._task, self._weights, batch.draws
        first, end = outputs_in(o.ce_current_support, task)
        mean, log_variance = self.generator.encode(batch.inputs, batch.labels)
        posterior = reparameterize(mean, log_variance, draws.normal("posterior", batch.total, o.latent))
        asked = {"posterior": (posterior, batch.labels)}
        if weights["guide"] and o.ce_current_input == "prior":
            asked["prior"] = draws.normal("prior", batch.total, o.latent), batch.labels
        if weights["match"] or weights["guide_old"]:
            labels = draws.integers("old labels", 0, task.old, batch.total)
            asked["old"] = draws.normal("old codes", batch.total, o.latent), labels
        made = self._decode(asked)

        terms = {
            "kl": prior_divergence(mean, log_variance),
            "recon": self._reconstruction(made["posterior"], batch.inputs),
        }
        if weights["guide"]:
            guided = made["prior" if o.ce_current_input == "prior" else "posterior"]
            terms["guide"] = cross_entropy(self.head(guided), batch.labels, first, end)
        if weights["match"]:
            terms["match"] = self._match(made["old"], *asked["old"], shares=batch.total / len(batch.labels))
        if weights["guide_old"]:
            terms["guide_old"] = cross_entropy(self.head(made["old"]), asked["old"][1], 0, end)
        return {name: weights[name] * value for name, value in terms.items()}

    def _reconstruction(self, made: Tensor, wanted: Tensor) -> Tensor:
        if self._options.recon == "bernoulli":
            return pixel_cross_entropy(made, wanted)
        return squared_error(made, wanted, half=self._options.recon == "gaussian")

    def _decode(self, asked: dict[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """What the decoder makes of each group of codes and labels, all in one pass."""
        codes, labels = (torch.cat(parts) for parts in zip(*asked.values(), strict=True))
        rows = [len(labels) for _, labels in asked.values()]
        return dict(zip(asked, torch.split(self.generator.decode(codes, labels), rows), strict=True))

    def _match(self, made: Tensor, codes: Tensor, labels: Tensor, shares: float) -> Tensor:
        """Eq. (7). The release's sum over the batch counts all processes, whose mean is what is stepped on."""
        with torch.no_grad():
            wanted = require(self.old).network.decode(codes, labels)
        if self._options.old_match_reduction == "gaussian":
            return squared_error(made, wanted)
        return shares * squared_error(made, wanted, half=False, per_row=False)
