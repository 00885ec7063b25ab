"""GFR's own generator: a conditional Wasserstein GAN with gradient penalty."""

from typing import Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from etag.core.outputs import require
from etag.core.random import Placement, Stream
from etag.core.scenario import Task
from etag.core.work import Batch, ParameterGroup, Terms
from etag.losses.generation import critic_loss, gradient_penalty, squared_error
from etag.methods.parts.fidelity import FidelityOptions
from etag.methods.parts.generators import GeneratorTrainOptions, NetworkGenerator, NetworkOptions
from etag.models.wgan import ConditionalWGAN


class AdversarialTrainOptions(GeneratorTrainOptions):
    """Adam with learning rate 1e-4 and beta1 = 0.5, times 0.3 every 200 epochs."""

    epochs: PositiveInt = Field(501, description="passes over the cached features")
    betas: tuple[float, float] = Field((0.5, 0.999), description="of Adam")
    decay: PositiveFloat = Field(0.3, description="factor of a decay")
    decay_every: PositiveInt = Field(200, description="`step`: epochs between two decays")


class AdversarialOptions(NetworkOptions):
    """The Wasserstein GAN."""

    kind: Literal["wgan"] = Field("wgan", description="a conditional Wasserstein GAN")
    train: AdversarialTrainOptions = Field(AdversarialTrainOptions(), description="training of critic and generator")
    last_task: bool = Field(False, description="train the generator in the last task too")
    critic_steps: PositiveInt = Field(5, description="steps of the critic per step of the generator")
    penalty: NonNegativeFloat = Field(10.0, description="weight of the gradient penalty")
    match_factor: NonNegativeFloat = Field(
        1e-3, description="multiplies lambda_vae, the weight of staying close to the old generator"
    )

    def create(
        self,
        size: int,
        stream: Stream,
        placement: Placement,
        _: FidelityOptions,
        pixels: bool = False,
        signed: bool = False,
    ) -> "AdversarialGenerator":
        """The generator of vectors of this size."""
        self.check_vectors(pixels)
        return AdversarialGenerator(
            self, lambda: ConditionalWGAN(size, self.latent, self.hidden, self.standardize, signed), stream, placement
        )


class AdversarialGenerator(NetworkGenerator[AdversarialOptions, ConditionalWGAN]):
    """A conditional Wasserstein GAN of features or pixels."""

    def objective(self, task: Task, head: nn.Module, weights: dict[str, float]) -> nn.Module:  # noqa: ARG002
        """Losses of critic and generator; nothing guides them."""
        return AdversarialObjective(self, task, self.options.match_factor * weights.get("match", 0.0))

    def groups(self) -> tuple[ParameterGroup, ...]:
        """The critic at every step, the generator at every few."""
        critic = ParameterGroup(list(self.network.critic.parameters()), "critic")
        generator = list(self.network.generator.parameters())
        return critic, ParameterGroup(generator, "generator", interval=self.options.critic_steps)


class AdversarialObjective(nn.Module):
    """The losses of critic and generator, one at a time."""

    def __init__(self, generator: AdversarialGenerator, task: Task, match: float) -> None:
        super().__init__()
        self.gan, self.old = generator.network, generator.old
        self._options, self._task, self._match = generator.options, task, match

    def forward(self, batch: Batch, group: str) -> Terms:
        """The weighted terms of one parameter group; `batch.inputs` are features."""
        codes = batch.draws.normal(f"{group} codes", batch.total, self.gan.latent)
        generated = self.gan.standardized(self.gan.decode(codes, batch.labels))
        if group == "critic":
            generated, real = generated.detach(), self.gan.standardized(batch.inputs)
            distance = critic_loss(self.gan.critic(real, batch.labels), self.gan.critic(generated, batch.labels))
            return {"wasserstein": distance, "penalty": self._options.penalty * self._penalty(batch, real, generated)}
        terms = {"generated": -self.gan.critic(generated, batch.labels).mean()}
        if self._match:
            terms["match"] = self._match * self._distance_to_old(batch)
        return terms

    def _penalty(self, batch: Batch, real: Tensor, generated: Tensor) -> Tensor:
        between_weight = batch.draws.uniform("between", batch.total, 1)
        with torch.enable_grad():  # the penalty is computed from a gradient, also where the caller turned gradients off
            between = (real + between_weight * (generated - real)).requires_grad_()
            return gradient_penalty(self.gan.critic(between, batch.labels), between)

    def _distance_to_old(self, batch: Batch) -> Tensor:
        """Squared distance of the features that the old and the new generator give for the same codes of old classes,
        summed over the global batch; DDP averages over processes, hence the factor."""
        labels = batch.draws.integers("old labels", 0, self._task.num_old, batch.total)
        codes = batch.draws.normal("old codes", batch.total, self.gan.latent)
        with torch.no_grad():
            target = require(self.old).network.decode(codes, labels)
        processes = batch.total / len(batch.labels)
        decoded, target = (self.gan.standardized(features) for features in (self.gan.decode(codes, labels), target))
        return processes * squared_error(decoded, target, half=False, mean_over_rows=False)
