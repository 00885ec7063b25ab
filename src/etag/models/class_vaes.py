"""One small VAE per class, computed in parallel, and the likelihood of features under each."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from etag.models.structure import Rebuildable

MAX_HIDDEN = 2**24  # largest number of hidden activations in memory while likelihoods are computed


class ParallelLinear(nn.Module):
    """One linear layer per class; inputs are (classes, rows, features), or (rows, features) shared by all classes."""

    def __init__(self, classes: int, features: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(features)  # as PyTorch initializes nn.Linear
        self.weight = nn.Parameter(torch.empty(classes, features, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(classes, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all layers: (classes, rows, outputs)."""
        if x.ndim == 2:
            x = x.expand(len(self.weight), *x.shape)
        return torch.baddbmm(self.bias, x, self.weight)


class ClassVAEs(Rebuildable):
    """One VAE per class: p(f | z) of unit variance and q(z | f), each with one hidden layer; the prior is N(0, I)."""

    def __init__(self, classes: int, features: int, latent: int = 20, hidden: int = 85) -> None:
        super().__init__()
        self.classes, self.features, self.latent, self.hidden = classes, features, latent, hidden
        self.encoder = ParallelLinear(classes, features, hidden)
        self.mean = ParallelLinear(classes, hidden, latent)
        self.log_variance = ParallelLinear(classes, hidden, latent)
        self.decoder = ParallelLinear(classes, latent, hidden)
        self.decoder_out = ParallelLinear(classes, hidden, features)

    def encode(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance of q(z | f), each (classes, rows, latent)."""
        hidden = functional.relu(self.encoder(features))
        return self.mean(hidden), self.log_variance(hidden)

    def decode(self, codes: Tensor) -> Tensor:
        """Return the mean of p(f | z): (classes, rows, features)."""
        generated: Tensor = self.decoder_out(functional.relu(self.decoder(codes)))
        return generated

    def log_likelihoods(self, features: Tensor, noise: Tensor) -> Tensor:
        """Return log p(f) of each row under each class's VAE: (rows, classes). It is estimated by importance sampling,
        log 1/S sum_s p(f | z_s) p(z_s) / q(z_s | f), where z_s is computed from row s of the standard normal `noise`
        (S, latent), the same for all rows and classes. With one row of zeros, z is the mean of q."""
        classes, hidden = self.decoder.bias.shape[0], self.decoder.bias.shape[2]
        rows = max(1, MAX_HIDDEN // (classes * len(noise) * hidden))
        squares = self.decoder_out.weight @ self.decoder_out.weight.mT  # (classes, hidden, hidden)
        return torch.cat([self._log_likelihoods(chunk, noise, squares) for chunk in torch.split(features, rows)])

    def _log_likelihoods(self, features: Tensor, noise: Tensor, squares: Tensor) -> Tensor:
        mean, log_variance = (value.unsqueeze(2) for value in self.encode(features))  # (classes, rows, 1, latent)
        codes = mean + noise * torch.exp(0.5 * log_variance)  # (classes, rows, samples, latent)
        hidden = functional.relu(self.decoder(codes.flatten(1, 2)))
        # |h W + b - f|^2 = h W W' h' + 2 h W (b - f)' + |b - f|^2 needs no decoded features in memory
        weight, bias = self.decoder_out.weight, self.decoder_out.bias
        cross = weight @ bias.mT - weight @ features.T  # (classes, hidden, rows)
        offset = bias.square().sum(2) - 2 * (bias @ features.T).squeeze(1) + features.square().sum(1)
        quadratic = (torch.bmm(hidden, squares) * hidden).sum(2).view(codes.shape[:3])
        linear = torch.matmul(hidden.view(*codes.shape[:3], -1), cross.mT.unsqueeze(3)).squeeze(3)
        error = quadratic + 2 * linear + offset.unsqueeze(2)
        # p(z) / q(z | f): the constants of both Gaussians cancel
        ratio = 0.5 * (log_variance + noise.square() - codes.square()).sum(3)
        constant = 0.5 * self.features * math.log(2 * math.pi) + math.log(len(noise))
        return (torch.logsumexp(ratio - 0.5 * error, dim=2) - constant).T
