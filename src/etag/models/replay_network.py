"""The network of BI-R (van de Ven et al., 2020): encoder, classifier and decoder in one."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from etag.models.heads import LinearHead
from etag.models.structure import Rebuildable


class ClassGaussians(nn.Module):
    """One Gaussian over latent codes per class, with trained means and log-variances."""

    def __init__(self, latent: int) -> None:
        super().__init__()
        self.means = nn.Parameter(torch.empty(0, latent))
        self.log_variances = nn.Parameter(torch.empty(0, latent))

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Add `classes` Gaussians; means and log-variances are drawn from a standard normal."""
        for name, old in list(self.named_parameters()):
            added = torch.randn(classes, old.shape[1], generator=generator).to(old)
            setattr(self, name, nn.Parameter(torch.cat([old.detach(), added])))

    def codes(self, labels: Tensor, noise: Tensor) -> Tensor:
        """Return one latent code per label, sampled from its Gaussian with the given standard normal noise."""
        return self.means[labels] + noise * torch.exp(0.5 * self.log_variances[labels])

    def log_density(self, codes: Tensor, class_probabilities: Tensor) -> Tensor:
        """Return log p of each code under a mixture of Gaussians with weights `class_probabilities` (rows, classes)."""
        distance = (codes[:, None] - self.means).square() * torch.exp(-self.log_variances)
        log_p = -0.5 * (distance + self.log_variances + math.log(2 * math.pi)).sum(2)
        return torch.logsumexp(log_p + class_probabilities.log(), dim=1)


class Gate(nn.Module):
    """Sets a share of the units to zero, other units for each class; chosen at random once, then stored."""

    masks: Tensor  # (classes, units); 0 silences a unit, 1 does not

    def __init__(self, units: int, silent: float) -> None:
        super().__init__()
        self._silent = silent
        self.register_buffer("masks", torch.empty(0, units))

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Choose the silent units of `classes` new classes, equally many for each."""
        units = self.masks.shape[1]
        order = torch.rand(classes, units, generator=generator).argsort(1)
        self.masks = torch.cat([self.masks, (order >= round(self._silent * units)).to(self.masks)])

    def forward(self, units: Tensor, class_probabilities: Tensor) -> Tensor:
        """Return the units times the mean of the masks, weighted by `class_probabilities` (rows, classes)."""
        return units * (class_probabilities @ self.masks)


class HiddenLayers(nn.Sequential, Rebuildable):
    """Two hidden layers of equal width, each followed by a ReLU."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.features, self.hidden = features, hidden


class ReplayNetwork(nn.Module):
    """Classifies features and generates them, with one encoder for both."""

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
        """Add `classes` new classes."""
        for part in (self.head, self.prior, self.gate_in, self.gate):
            part.grow(classes, generator)

    def classify(self, features: Tensor) -> Tensor:
        """Return the logits of all classes: (rows, classes)."""
        logits: Tensor = self.head(self.encoder(features))
        return logits

    def decode(self, codes: Tensor, class_probabilities: Tensor) -> Tensor:
        """Return the generated feature of each code, whose class is given by `class_probabilities` (rows, classes)."""
        hidden = self.gate_in(functional.relu(self.decoder_in(codes)), class_probabilities)
        generated: Tensor = self.decoder_out(self.gate(functional.relu(self.decoder(hidden)), class_probabilities))
        return generated
