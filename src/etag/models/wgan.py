"""The original feature generator of GFR (Liu et al., 2020): a conditional Wasserstein GAN."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from etag.models.cvae import ConditionalLinear
from etag.models.feature_scale import FeatureNetwork
from etag.models.initial import build
from etag.models.modules import Modules

STD = 0.02  # standard deviation of all initial weights


class _NormalLinear(nn.Linear):
    """A linear layer with normally distributed initial weights."""

    def reset_parameters(self) -> None:
        """Initialize as the original code does: normal weights, zero bias."""
        nn.init.normal_(self.weight, 0.0, STD)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def _leaky(x: Tensor) -> Tensor:
    return functional.leaky_relu(x, 0.2)


class Generator(nn.Module):
    """Generates a feature from a latent code and a class, but for the last activation."""

    def __init__(self, features: int, latent: int, hidden: int) -> None:
        super().__init__()
        self.first = ConditionalLinear(latent, hidden, _NormalLinear, STD)
        self.second = _NormalLinear(hidden, hidden)
        self.last = _NormalLinear(hidden, features)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Return one output per row: (rows, features)."""
        output: Tensor = self.last(_leaky(self.second(_leaky(self.first(latent, labels)))))
        return output


class Critic(nn.Module):
    """Scores how real a feature of a class is: a linear output plus a class projection (Miyato and Koyama, 2018)."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.first = _NormalLinear(features, hidden)
        self.second = _NormalLinear(hidden, hidden)
        self.score = _NormalLinear(hidden, 1)
        self.classes: Modules[_NormalLinear] = Modules()  # one vector per class, in one block per task

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Add `classes` new classes."""
        self.classes.append(build(lambda: _NormalLinear(self.second.out_features, classes, bias=False), generator))

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return one score per row."""
        hidden = _leaky(self.second(_leaky(self.first(features))))
        rows = torch.cat([block.weight for block in self.classes])
        scores: Tensor = self.score(hidden).squeeze(1) + (functional.embedding(labels, rows) * hidden).sum(1)
        return scores


class ConditionalWGAN(FeatureNetwork):
    """The generator and the critic that trains it. Generated features end in a ReLU, since features are not negative,
    unless they are `signed`. With `standardize` both networks work on standardized features, but `decode` returns
    features on their original scale."""

    def __init__(
        self, features: int, latent: int = 200, hidden: int = 512, standardize: bool = False, signed: bool = False
    ) -> None:
        super().__init__(features, standardize, signed)
        self.latent = latent
        self.generator, self.critic = Generator(features, latent, hidden), Critic(features, hidden)

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Add `classes` new classes."""
        self.generator.first.grow(classes, generator)
        self.critic.grow(classes, generator)

    def decode(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Return the generated feature for each latent code and label: (rows, features)."""
        return self.restored(self.generator(latent, labels))
