"""The paper's generator: a conditional VAE whose training the frozen classifier may guide (Eqs. 6, 7 and 10)."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from etag.core.errors import EtagError
from etag.core.options import TrainOptions
from etag.core.outputs import require
from etag.core.random import Placement, Stream
from etag.core.scenario import Task
from etag.core.work import Batch, Plan, Terms
from etag.losses.classification import cross_entropy
from etag.losses.generation import pixel_cross_entropy, prior_divergence, reparameterize, squared_error
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.classification import output_range
from etag.methods.parts.fidelity import FidelityOptions
from etag.methods.parts.generators import NetworkGenerator, NetworkOptions, NormalSampler
from etag.models.cvae import ConditionalVAE


class VariationalOptions(NetworkOptions):
    """The conditional VAE."""

    kind: Literal["cvae"] = Field("cvae", description="a conditional VAE")
    decoder_noise: bool = Field(
        False, description="add to generated features the decoder's mean error per class, and normal noise"
    )

    def create(
        self,
        size: int,
        stream: Stream,
        placement: Placement,
        fidelity: FidelityOptions,
        pixels: bool = False,
        signed: bool = False,
    ) -> "VariationalGenerator":
        """The generator of vectors of this size."""
        self.check_vectors(pixels)
        if pixels and self.decoder_noise:
            raise EtagError("generator.decoder_noise is for features, not for images: leave it out.")
        return VariationalGenerator(self, size, stream, placement, fidelity, pixels, signed)


class VariationalGenerator(NetworkGenerator[VariationalOptions, ConditionalVAE]):
    """A conditional VAE of features, or of pixels between 0 and 1."""

    def __init__(
        self,
        o: VariationalOptions,
        size: int,
        stream: Stream,
        placement: Placement,
        fidelity: FidelityOptions,
        pixels: bool,
        signed: bool,
    ) -> None:
        super().__init__(
            o,
            lambda: ConditionalVAE(size, o.latent, o.hidden, pixels, o.decoder_noise, o.standardize, signed),
            stream,
            placement,
        )
        self.fidelity, self.pixels = fidelity, pixels

    def remove_class(self, label: int) -> None:
        """Remove the rows of a class."""
        self.network.remove_class(label)

    def generate(self, network: ConditionalVAE, labels: Tensor, normal: NormalSampler) -> Tensor:
        """Features of these classes; decoder noise is added if the VAE has it."""
        features = super().generate(network, labels, normal)
        if network.decoder_noise is None:
            return features
        return network.decoder_noise.added(features, labels, normal("replay residuals", features.shape[1]))

    def objective(self, task: Task, head: nn.Module, weights: dict[str, float]) -> nn.Module:
        """Eq. (6), or (10) where there are old classes."""
        return VariationalObjective(self, head, task, weights)

    def learn(
        self, task: Task, features: CachedFeatures, weights: dict[str, float], head: nn.Module, stream: Stream
    ) -> Plan:
        """Train, then measure the decoder's noise, if it is to be added."""
        yield from super().learn(task, features, weights, head, stream)
        if self.network.decoder_noise is not None and task.num_new:
            self._fit_decoder_noise(task, features, stream.child("decoder_noise"))

    @property
    def update_training(self) -> TrainOptions:
        """The generator's own training options."""
        return self.options.train

    @torch.no_grad()
    def _fit_decoder_noise(self, task: Task, cached: CachedFeatures, stream: Stream) -> None:
        features, labels = cached.all_features, cached.all_labels
        posterior_noise, prior_codes = (
            torch.randn(len(labels), self.network.latent, generator=stream.torch_generator(name)).to(features)
            for name in ("posterior", "prior")
        )
        mean, log_variance = self.network.encode(features, labels)
        # the covariance is measured on reconstructions, the mean on samples from the prior, like replayed ones
        error = features - self.network.decode(reparameterize(mean, log_variance, posterior_noise), labels)
        offset = features - self.network.decode(prior_codes, labels)
        rows = [labels == label for label in range(task.num_old, task.num_seen)]
        covariance = torch.stack([error[own].T.cov(correction=0) for own in rows]).mean(0)
        require(self.network.decoder_noise).learn(torch.stack([offset[own].mean(0) for own in rows]), covariance)


class VariationalObjective(nn.Module):
    """Eqs. (6), (7) and (10): one decoder pass serves reconstruction, guidance and old classes."""

    def __init__(self, generator: VariationalGenerator, head: nn.Module, task: Task, weights: dict[str, float]) -> None:
        super().__init__()
        self.vae, self.old, self.head = generator.network, generator.old, head
        self._fidelity, self._pixels = generator.fidelity, generator.pixels
        self._task, self._weights = task, {name: weight for name, weight in weights.items() if weight}

    def forward(self, batch: Batch) -> Terms:
        """The weighted terms; `batch.inputs` are features."""
        weights, task, latent = self._weights, self._task, self.vae.latent
        first, end = output_range(self._fidelity.guide_classes, task)
        mean, log_variance = self.vae.encode(batch.inputs, batch.labels)
        posterior = reparameterize(mean, log_variance, batch.draws.normal("posterior", batch.total, latent))
        codes = {"posterior": (posterior, batch.labels)}
        guided = "prior" if self._fidelity.guide_input == "prior" else "posterior"
        if "guide" in weights and guided == "prior":
            codes["prior"] = batch.draws.normal("prior", batch.total, latent), batch.labels
        if "match" in weights or "guide_old" in weights:
            labels = batch.draws.integers("old labels", 0, task.num_old, batch.total)
            codes["old"] = batch.draws.normal("old codes", batch.total, latent), labels
        decoded = self._decode(codes)

        terms = {
            "kl": prior_divergence(mean, log_variance),
            "recon": self._reconstruction(decoded["posterior"], batch.inputs),
        }
        if "guide" in weights:
            terms["guide"] = cross_entropy(self.head(decoded[guided]), batch.labels, first, end)
        if "match" in weights:
            terms["match"] = self._match(decoded["old"], *codes["old"], processes=batch.total / len(batch.labels))
        if "guide_old" in weights:
            terms["guide_old"] = cross_entropy(self.head(decoded["old"]), codes["old"][1], 0, end)
        return {name: weights[name] * value for name, value in terms.items()}

    def _reconstruction(self, decoded: Tensor, target: Tensor) -> Tensor:
        if self._pixels:
            return pixel_cross_entropy(decoded, target)
        decoded, target = self.vae.standardized(decoded), self.vae.standardized(target)
        return squared_error(decoded, target, half=self._fidelity.reconstruction == "half")

    def _decode(self, codes: dict[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Decode each group of codes and labels, all in one pass."""
        latent, labels = (torch.cat(parts) for parts in zip(*codes.values(), strict=True))
        rows = [len(group_labels) for _, group_labels in codes.values()]
        return dict(zip(codes, torch.split(self.vae.decode(latent, labels), rows), strict=True))

    def _match(self, decoded: Tensor, codes: Tensor, labels: Tensor, processes: float) -> Tensor:
        """Eq. (7). match_reduction=batch_sum sums over the global batch: DDP averages, so we multiply by
        `processes`."""
        with torch.no_grad():
            target = self.vae.standardized(require(self.old).network.decode(codes, labels))
        decoded = self.vae.standardized(decoded)
        factor = self._fidelity.match_factor
        if self._fidelity.match_reduction == "mean":
            return factor * squared_error(decoded, target)
        return factor * processes * squared_error(decoded, target, half=False, mean_over_rows=False)
