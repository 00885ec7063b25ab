"""BI-R's network: its options, and what its training minimizes."""

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from etag.core.options import Options, Schedule
from etag.core.outputs import require
from etag.core.scenario import Task
from etag.core.work import Batch, Terms
from etag.losses.classification import cross_entropy
from etag.losses.distillation import padded_distillation, padded_softmax
from etag.losses.generation import reparameterize, sampled_divergence, squared_error
from etag.methods.parts.replay import GeneratorTrainOptions
from etag.models.replay_network import ReplayNetwork
from etag.models.solver import Frozen


class ReplayNetworkTrainOptions(GeneratorTrainOptions):
    """Adam 1e-4 throughout."""

    steps: PositiveInt | None = Field(5000, description="of each task")
    batch_size: PositiveInt = Field(256, description="new features per step, and as many that are replayed")
    schedule: Schedule = "constant"


class ReplayNetworkOptions(Options):
    """The network that classifies and replays."""

    latent: PositiveInt = 100
    hidden: PositiveInt = 2000
    silent: float = Field(0.7, ge=0, lt=1, description="share of the decoder's units that a class's gates silence")
    train: ReplayNetworkTrainOptions = ReplayNetworkTrainOptions()


class ReplayObjective(nn.Module):
    """Cross-entropy, reconstruction and divergence of new features; the same, with soft answers, of replayed ones."""

    def __init__(
        self,
        network: ReplayNetwork,
        old: Frozen[ReplayNetwork] | None,
        task: Task,
        tau: float,
        kl_divisor: float | None,
    ) -> None:
        super().__init__()
        self.network, self.old = network, old
        self._task, self._tau = task, tau
        self._kl_divisor = kl_divisor or network.features

    def forward(self, batch: Batch) -> Terms:
        """The weighted terms."""
        seen, new = self._task.seen, 1 / (self._task.index + 1)
        logits, terms = self._generation(batch, "new", batch.inputs, functional.one_hot(batch.labels, seen))
        terms = {"ce": cross_entropy(logits, batch.labels, 0, seen)} | terms
        weighted = {name: new * value for name, value in terms.items()}
        if self.old is not None:
            features, answers = self.replayed(batch)
            tau = self._tau
            logits, terms = self._generation(batch, "replayed", features, padded_softmax(answers / tau, seen))
            terms["kd"] = padded_distillation(logits[:, :seen], answers, tau)
            weighted |= {f"{name}_replayed": (1 - new) * value for name, value in terms.items()}
        return weighted

    @torch.no_grad()
    def replayed(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Features of old classes, and the old network's logits of them."""
        old, classes = require(self.old).network, self._task.old
        labels = batch.draws.integers("replay labels", 0, classes, batch.total)
        codes = old.prior.codes(labels, batch.draws.normal("replay codes", batch.total, old.latent))
        features = old.decode(codes, functional.one_hot(labels, classes).to(codes))
        return features, old.classify(features)[:, :classes]

    def _generation(self, batch: Batch, which: str, features: Tensor, shares: Tensor) -> tuple[Tensor, Terms]:
        """Logits of features, and what making them again costs; `shares` are those of their classes."""
        network, shares = self.network, shares.to(features)
        hidden = network.encoder(features)
        mean, log_variance = network.mean(hidden), network.log_variance(hidden)
        noise = batch.draws.normal(f"{which} posterior", batch.total, network.latent)
        codes = reparameterize(mean, log_variance, noise)
        divergence = sampled_divergence(noise, log_variance, network.prior.log_density(codes, shares))
        recon = squared_error(network.decode(codes, shares), features) / network.features
        return network.head(hidden), {
            "recon": recon,
            "kl": divergence / self._kl_divisor,
        }
