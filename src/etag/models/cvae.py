"""The conditional variational auto-encoder that makes features of known classes again."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from etag.models.initial import build
from etag.models.modules import Modules


class ConditionalLinear(nn.Module):
    """A linear layer on [x, one-hot(y)], kept as a layer on x plus one row a class, so that classes can be added."""

    def __init__(self, features: int, outputs: int, linear: type[nn.Linear] = nn.Linear, std: float = 0.0) -> None:
        super().__init__()
        self.linear, self._std = linear(features, outputs), std
        self.blocks: Modules[_ClassRows] = Modules()

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Add a block of classes."""
        outputs, features = self.linear.weight.shape
        self.blocks.append(build(lambda: _ClassRows(classes, outputs, features, self._std), generator))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """The layer's output before any activation."""
        rows = torch.cat([block.weight for block in self.blocks])
        joint: Tensor = self.linear(x) + functional.embedding(labels, rows)
        return joint


class _ClassRows(nn.Module):
    """The columns of the joint weight matrix that belong to a block of classes."""

    def __init__(self, classes: int, outputs: int, features: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, outputs))
        self._fan_in, self._std = features, std

    def initialise(self, generator: torch.Generator) -> None:
        """As the rest of the layer."""
        if self._std:
            nn.init.normal_(self.weight, 0.0, self._std, generator=generator)
            return
        bound = 1 / math.sqrt(self._fan_in)
        nn.init.uniform_(self.weight, -bound, bound, generator=generator)


class ConditionalVAE(nn.Module):
    """p(f | y, z) and q(z | f, y), each with two hidden layers; features are not negative, so is the output."""

    def __init__(self, features: int, latent: int = 200, hidden: int = 512) -> None:
        super().__init__()
        self.latent = latent
        self.encoder_in = ConditionalLinear(features, hidden)
        self.encoder = nn.Linear(hidden, hidden)
        self.mean = nn.Linear(hidden, latent)
        self.log_variance = nn.Linear(hidden, latent)
        self.decoder_in = ConditionalLinear(latent, hidden)
        self.decoder = nn.Linear(hidden, hidden)
        self.decoder_out = nn.Linear(hidden, features)

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Learn of new classes."""
        self.encoder_in.grow(classes, generator)
        self.decoder_in.grow(classes, generator)

    def encode(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of q(z | f, y)."""
        hidden = functional.relu(self.encoder(functional.relu(self.encoder_in(features, labels))))
        return self.mean(hidden), self.log_variance(hidden)

    def decode(self, latent: Tensor, labels: Tensor) -> Tensor:
        """The feature of a latent code and a class."""
        hidden = functional.relu(self.decoder(functional.relu(self.decoder_in(latent, labels))))
        return functional.relu(self.decoder_out(hidden))
