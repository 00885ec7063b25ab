"""BI-R's network (van de Ven et al., 2020): encoder, classifier and decoder in one."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from etag.models.heads import LinearHead
from etag.models.structure import Described


class ClassGaussians(nn.Module):
    """A Gaussian of latent codes for each class; mean and log-variance are learned."""

    def __init__(self, latent: int) -> None:
        super().__init__()
        self.means = nn.Parameter(torch.empty(0, latent))
        self.log_variances = nn.Parameter(torch.empty(0, latent))

    def initialize(self, generator: torch.Generator) -> None:
        """There is no class yet."""

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Add classes, with standard normal numbers."""
        self.means, self.log_variances = (
            nn.Parameter(torch.cat([kept.detach(), _normal_rows(classes, kept, generator)]))
            for kept in (self.means, self.log_variances)
        )

    def codes(self, labels: Tensor, noise: Tensor) -> Tensor:
        """What noise is a code of each label's Gaussian."""
        return self.means[labels] + noise * torch.exp(0.5 * self.log_variances[labels])

    def log_density(self, codes: Tensor, shares: Tensor) -> Tensor:
        """log p of each code in the mixture of Gaussians in which each class has its share (rows, classes)."""
        distance = (codes[:, None] - self.means).square() * torch.exp(-self.log_variances)
        each = -0.5 * (distance + self.log_variances + math.log(2 * math.pi)).sum(2)
        return torch.logsumexp(each + shares.log(), dim=1)


def _normal_rows(rows: int, like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, like.shape[1], generator=generator).to(like)


class Gate(nn.Module):
    """Silences a part of the units, for each class other ones: chosen once, and kept with the weights."""

    masks: Tensor  # (classes, units), of zeros and ones

    def __init__(self, units: int, silent: float) -> None:
        super().__init__()
        self._silent = silent
        self.register_buffer("masks", torch.empty(0, units))

    def initialize(self, generator: torch.Generator) -> None:
        """There is no class yet."""

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Choose for new classes: the same number of units for each."""
        units = self.masks.shape[1]
        order = torch.rand(classes, units, generator=generator).argsort(1)
        self.masks = torch.cat([self.masks, (order >= round(self._silent * units)).to(self.masks)])

    def forward(self, units: Tensor, shares: Tensor) -> Tensor:
        """What is left of them; where a row belongs to several classes, each has its share."""
        return units * (shares @ self.masks)


class HiddenLayers(nn.Sequential, Described):
    """Two hidden layers of equal width, each followed by a ReLU."""

    arguments = ("features", "hidden")

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.features, self.hidden = features, hidden


class ReplayNetwork(nn.Module):
    """Classifies features and makes them again from the same hidden layer."""

    def __init__(self, features: int, latent: int = 100, hidden: int = 2000, silent: float = 0.7) -> None:
        super().__init__()
        self.latent, self.features = latent, features
        self.encoder = HiddenLayers(features, hidden)
        self.head = LinearHead(hidden)
        self.mean = nn.Linear(hidden, latent)
        self.log_variance = nn.Linear(hidden, latent, bias=False)
        self.prior = ClassGaussians(latent)
        self.decoder_in, self.decoder = nn.Linear(latent, hidden), nn.Linear(hidden, hidden)
        self.gate_in, self.gate = Gate(hidden, silent), Gate(hidden, silent)
        self.decoder_out = nn.Linear(hidden, features)

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Learn of new classes."""
        for part in (self.head, self.prior, self.gate_in, self.gate):
            part.grow(classes, generator)

    def classify(self, features: Tensor) -> Tensor:
        """Logits of all classes."""
        logits: Tensor = self.head(self.encoder(features))
        return logits

    def decode(self, codes: Tensor, shares: Tensor) -> Tensor:
        """The feature of a code; `shares` says to which classes it belongs."""
        hidden = self.gate_in(functional.relu(self.decoder_in(codes)), shares)
        made: Tensor = self.decoder_out(self.gate(functional.relu(self.decoder(hidden)), shares))
        return made
