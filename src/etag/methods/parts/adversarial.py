"""GFR's own generator: a conditional Wasserstein GAN with gradient penalty."""

from typing import Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from etag.core.outputs import require
from etag.core.scenario import Task
from etag.core.work import Batch, ParameterGroup, Terms
from etag.losses.generation import critic_loss, gradient_penalty, squared_error
from etag.methods.parts.replay import FeatureReplay, GeneratorOptions, GeneratorTrainOptions
from etag.models.wgan import ConditionalWGAN


class AdversarialTrainOptions(GeneratorTrainOptions):
    """Adam 1e-4 with a shorter memory, times 0.3 every 200 epochs."""

    epochs: PositiveInt = 501
    betas: tuple[float, float] = (0.5, 0.999)
    decay: PositiveFloat = 0.3
    decay_every: PositiveInt = 200


class AdversarialOptions(GeneratorOptions):
    """The GAN and its losses."""

    kind: Literal["wgan"] = "wgan"
    train: AdversarialTrainOptions = AdversarialTrainOptions()
    last_task: bool = False
    critic_steps: PositiveInt = Field(5, description="steps of the critic for one of the generator")
    penalty: NonNegativeFloat = Field(10.0, description="weight of the gradient penalty")
    old_match_weight: NonNegativeFloat = Field(
        1e-3, description="factor on lambda_vae: likeness to the old generator"
    )


class AdversarialReplay(FeatureReplay[AdversarialOptions, ConditionalWGAN]):
    """The part."""

    def network(self, features: int) -> ConditionalWGAN:
        """Generator and critic."""
        return ConditionalWGAN(features, self.options.latent, self.options.hidden)

    def objective(self, task: Task, head: nn.Module, weights: dict[str, float]) -> nn.Module:  # noqa: ARG002
        """Nobody guides it."""
        return AdversarialObjective(self, task, weights["match"])

    def groups(self) -> tuple[ParameterGroup, ...]:
        """The critic at every step, the generator at every few."""
        critic = ParameterGroup(list(self.generator.critic.parameters()), "critic")
        generator = list(self.generator.generator.parameters())
        return critic, ParameterGroup(generator, "generator", every=self.options.critic_steps)


class AdversarialObjective(nn.Module):
    """What critic and generator minimize, each at its turn."""

    def __init__(self, replay: AdversarialReplay, task: Task, match: float) -> None:
        super().__init__()
        self.gan, self.old = replay.generator, replay.old
        self._options, self._task, self._match = replay.options, task, match

    def forward(self, batch: Batch, group: str) -> Terms:
        """The weighted terms of one player; `batch.inputs` are features."""
        codes = batch.draws.normal(f"{group} codes", batch.total, self.gan.latent)
        made = self.gan.decode(codes, batch.labels)
        if group == "critic":
            made = made.detach()
            said = critic_loss(self.gan.critic(batch.inputs, batch.labels), self.gan.critic(made, batch.labels))
            return {"wasserstein": said, "penalty": self._options.penalty * self._penalty(batch, made)}
        terms = {"made": -self.gan.critic(made, batch.labels).mean()}
        if self._match:
            terms["match"] = self._match * self._likeness(batch)
        return terms

    def _penalty(self, batch: Batch, made: Tensor) -> Tensor:
        share = batch.draws.uniform("between", batch.total, 1)
        with torch.enable_grad():  # a penalty on a gradient needs one, also where only its value is asked for
            between = (batch.inputs + share * (made - batch.inputs)).requires_grad_()
            return gradient_penalty(self.gan.critic(between, batch.labels), between)

    def _likeness(self, batch: Batch) -> Tensor:
        """The same codes of old classes shall become what the old generator makes of them. A sum over the batch, of
        all processes, whose mean is what is stepped on."""
        labels = batch.draws.integers("old labels", 0, self._task.old, batch.total)
        codes = batch.draws.normal("old codes", batch.total, self.gan.latent)
        with torch.no_grad():
            wanted = require(self.old).network.decode(codes, labels)
        shares = batch.total / len(batch.labels)
        return shares * squared_error(self.gan.decode(codes, labels), wanted, half=False, per_row=False)
