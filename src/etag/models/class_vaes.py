"""Small VAEs side by side, one a class, and how likely they hold a feature to be."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from etag.models.structure import Described

AT_ONCE = 2**24  # numbers that are decoded at once while likelihoods are computed


class ParallelLinear(nn.Module):
    """A linear layer for each of several classes. Inputs are (classes, rows, features); (rows, features) for all."""

    def __init__(self, classes: int, features: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, features, outputs))
        self.bias = nn.Parameter(torch.empty(classes, 1, outputs))

    def initialize(self, generator: torch.Generator) -> None:
        """Each as a linear layer of its own would be."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        nn.init.uniform_(self.weight, -bound, bound, generator=generator)
        nn.init.uniform_(self.bias, -bound, bound, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """(classes, rows, outputs)."""
        if x.ndim == 2:
            x = x.expand(len(self.weight), *x.shape)
        return torch.baddbmm(self.bias, x, self.weight)


class ClassVAEs(Described):
    """p(f | z) and q(z | f) of each class, with one hidden layer; f is a Gaussian of unit variance, z is N(0, I)."""

    arguments = ("classes", "features", "latent", "hidden")

    def __init__(self, classes: int, features: int, latent: int = 20, hidden: int = 85) -> None:
        super().__init__()
        self.classes, self.features, self.latent, self.hidden = classes, features, latent, hidden
        self.encoder = ParallelLinear(classes, features, hidden)
        self.mean = ParallelLinear(classes, hidden, latent)
        self.log_variance = ParallelLinear(classes, hidden, latent)
        self.decoder = ParallelLinear(classes, latent, hidden)
        self.decoder_out = ParallelLinear(classes, hidden, features)

    def encode(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of q(z | f)."""
        hidden = functional.relu(self.encoder(features))
        return self.mean(hidden), self.log_variance(hidden)

    def decode(self, codes: Tensor) -> Tensor:
        """The mean of p(f | z)."""
        made: Tensor = self.decoder_out(functional.relu(self.decoder(codes)))
        return made

    def log_likelihoods(self, features: Tensor, noise: Tensor) -> Tensor:
        """log p(f) of each row under each class: (rows, classes).

        Importance sampling, log 1/S sum_s p(f | z_s) p(z_s) / q(z_s | f): q makes z_s of the s-th row of `noise`,
        which serves all rows and classes. One row of zeros looks at the mean alone.
        """
        classes, hidden = self.decoder.bias.shape[0], self.decoder.bias.shape[2]
        rows = max(1, AT_ONCE // (classes * len(noise) * hidden))
        squares = self.decoder_out.weight @ self.decoder_out.weight.mT  # (classes, hidden, hidden)
        return torch.cat([self._log_likelihoods(chunk, noise, squares) for chunk in torch.split(features, rows)])

    def _log_likelihoods(self, features: Tensor, noise: Tensor, squares: Tensor) -> Tensor:
        mean, log_variance = (value.unsqueeze(2) for value in self.encode(features))  # (classes, rows, 1, latent)
        codes = mean + noise * torch.exp(0.5 * log_variance)  # (classes, rows, samples, latent)
        hidden = functional.relu(self.decoder(codes.flatten(1, 2)))
        # |h W + b - f|^2 = h W W' h' + 2 h W (b - f)' + |b - f|^2: no feature has to be made for it
        weight, bias = self.decoder_out.weight, self.decoder_out.bias
        across = weight @ bias.mT - weight @ features.T  # (classes, hidden, rows)
        offset = bias.square().sum(2) - 2 * (bias @ features.T).squeeze(1) + features.square().sum(1)
        own = (torch.bmm(hidden, squares) * hidden).sum(2).view(codes.shape[:3])
        mixed = torch.matmul(hidden.view(*codes.shape[:3], -1), across.mT.unsqueeze(3)).squeeze(3)
        error = own + 2 * mixed + offset.unsqueeze(2)
        # p(z) / q(z | f): the constants of both Gaussians cancel
        ratio = 0.5 * (log_variance + noise.square() - codes.square()).sum(3)
        constant = 0.5 * self.features * math.log(2 * math.pi) + math.log(len(noise))
        return (torch.logsumexp(ratio - 0.5 * error, dim=2) - constant).T
