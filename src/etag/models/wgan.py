"""GFR's own generator of features: a conditional Wasserstein GAN (Liu et al., 2020)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from etag.models.cvae import ConditionalLinear
from etag.models.initial import build
from etag.models.modules import Modules

STD = 0.02  # of the weights that everything here begins with


class _Normal(nn.Linear):
    """A linear layer that begins with normal weights."""

    def initialize(self, generator: torch.Generator) -> None:
        """As the original."""
        nn.init.normal_(self.weight, 0.0, STD, generator=generator)
        nn.init.zeros_(self.bias)


class _ClassVectors(nn.Module):
    """A vector a class, for a block of classes."""

    def __init__(self, classes: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, size))

    def initialize(self, generator: torch.Generator) -> None:
        """As the rest."""
        nn.init.normal_(self.weight, 0.0, STD, generator=generator)


def _leaky(x: Tensor) -> Tensor:
    return functional.leaky_relu(x, 0.2)


class Generator(nn.Module):
    """Features of codes and classes; features are not negative, so is the output."""

    def __init__(self, features: int, latent: int, hidden: int) -> None:
        super().__init__()
        self.first = ConditionalLinear(latent, hidden, _Normal, STD)
        self.second = _Normal(hidden, hidden)
        self.last = _Normal(hidden, features)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """One feature a row."""
        hidden = _leaky(self.second(_leaky(self.first(latent, labels))))
        return functional.relu(self.last(hidden))


class Critic(nn.Module):
    """How real a feature of a class is: a linear answer, and the class's projection (Miyato and Koyama, 2018)."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.first = _Normal(features, hidden)
        self.second = _Normal(hidden, hidden)
        self.answer = _Normal(hidden, 1)
        self.classes: Modules[_ClassVectors] = Modules()

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Learn of new classes."""
        self.classes.append(build(lambda: _ClassVectors(classes, self.second.out_features), generator))

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """One number a row."""
        hidden = _leaky(self.second(_leaky(self.first(features))))
        rows = torch.cat([block.weight for block in self.classes])
        said: Tensor = self.answer(hidden).squeeze(1) + (functional.embedding(labels, rows) * hidden).sum(1)
        return said


class ConditionalWGAN(nn.Module):
    """Generator and critic."""

    def __init__(self, features: int, latent: int = 200, hidden: int = 512) -> None:
        super().__init__()
        self.latent = latent
        self.generator, self.critic = Generator(features, latent, hidden), Critic(features, hidden)

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Learn of new classes."""
        self.generator.first.grow(classes, generator)
        self.critic.grow(classes, generator)

    def decode(self, latent: Tensor, labels: Tensor) -> Tensor:
        """The feature of a latent code and a class."""
        made: Tensor = self.generator(latent, labels)
        return made
