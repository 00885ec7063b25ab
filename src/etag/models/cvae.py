"""The conditional variational auto-encoder that makes features of known classes again."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from etag.models.modules import StoredTensors


class ConditionalLinear(nn.Module):
    """A linear layer on [x, one-hot(y)], kept as a layer on x plus one row a class, so that classes can be added."""

    def __init__(self, features: int, outputs: int, linear: type[nn.Linear] = nn.Linear, std: float = 0.0) -> None:
        super().__init__()
        self.linear, self._std = linear(features, outputs), std
        self.rows = nn.Parameter(torch.empty(0, outputs))

    def initialize(self, generator: torch.Generator) -> None:
        """There are no rows yet."""

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Add rows, with numbers like those of the rest of the layer."""
        outputs, features = self.linear.weight.shape
        added = torch.empty(classes, outputs)
        if self._std:
            nn.init.normal_(added, 0.0, self._std, generator=generator)
        else:
            bound = 1 / math.sqrt(features)
            nn.init.uniform_(added, -bound, bound, generator=generator)
        self.rows = nn.Parameter(torch.cat([self.rows.detach(), added.to(self.rows.device)]))

    def drop(self, label: int) -> None:
        """Remove the row of a class."""
        self.rows = nn.Parameter(torch.cat([self.rows.detach()[:label], self.rows.detach()[label + 1 :]]))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """The layer's output before any activation."""
        joint: Tensor = self.linear(x) + functional.embedding(labels, self.rows)
        return joint


class Residuals(StoredTensors):
    """What a decoder's mean leaves out of the features it is to make: a mean a class, and one covariance for all.

    With them what is made is a sample of p(f | y, z) = N(decoder(z, y) + mean_y, covariance).
    """

    means: Tensor
    factor: Tensor  # times its transpose, the covariance

    def __init__(self, features: int) -> None:
        super().__init__()
        self.store(means=torch.empty(0, features), factor=torch.zeros(features, features))

    def initialize(self, _: torch.Generator) -> None:
        """No class is known yet."""
        self.store(means=torch.zeros_like(self.means), factor=torch.zeros_like(self.factor))

    def learn(self, means: Tensor, covariance: Tensor) -> None:
        """Add new classes. The covariance becomes the mean over all classes."""
        old, new = len(self.means), len(means)
        pooled = (old * self.factor @ self.factor.T + new * covariance) / (old + new)
        smallest = 1e-6 * pooled.diagonal().mean().clamp(min=1e-6) * torch.eye(len(pooled), device=pooled.device)
        self.store(means=torch.cat([self.means, means]), factor=torch.linalg.cholesky(pooled + smallest))

    def drop(self, label: int) -> None:
        """Forget a class."""
        self.store(means=torch.cat([self.means[:label], self.means[label + 1 :]]))

    def added(self, made: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
        """Features as they would be, not negative; `noise` is standard normal."""
        return functional.relu(made + self.means[labels] + noise @ self.factor.T)


class ConditionalVAE(nn.Module):
    """p(f | y, z) and q(z | f, y), each with two hidden layers.

    Features are not negative, and nor is the output; pixels are between 0 and 1, and then it is `bounded`.
    """

    def __init__(
        self, features: int, latent: int = 200, hidden: int = 512, bounded: bool = False, residuals: bool = False
    ) -> None:
        super().__init__()
        self.residuals = Residuals(features) if residuals else None
        self.latent, self._bounded = latent, bounded
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

    def drop(self, label: int) -> None:
        """Forget a class; the labels after it move up."""
        self.encoder_in.drop(label)
        self.decoder_in.drop(label)
        if self.residuals is not None:
            self.residuals.drop(label)

    def encode(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of q(z | f, y)."""
        hidden = functional.relu(self.encoder(functional.relu(self.encoder_in(features, labels))))
        return self.mean(hidden), self.log_variance(hidden)

    def decode(self, latent: Tensor, labels: Tensor) -> Tensor:
        """The feature of a latent code and a class."""
        hidden = functional.relu(self.decoder(functional.relu(self.decoder_in(latent, labels))))
        made: Tensor = self.decoder_out(hidden)
        return made.sigmoid() if self._bounded else functional.relu(made)
