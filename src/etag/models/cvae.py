"""The conditional variational autoencoder that generates features of known classes."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from etag.models.feature_scale import FeatureNetwork
from etag.models.modules import StoredTensors


class ConditionalLinear(nn.Module):
    """A linear layer on [x, one-hot(y)], stored as a layer on x plus one row per class so that it can grow."""

    def __init__(self, features: int, outputs: int, linear: type[nn.Linear] = nn.Linear, std: float = 0.0) -> None:
        super().__init__()
        self.linear, self._std = linear(features, outputs), std
        self.rows = nn.Parameter(torch.empty(0, outputs))

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Add `classes` rows, initialized like the rest of the layer."""
        outputs, features = self.linear.weight.shape
        added = torch.empty(classes, outputs)
        if self._std:
            nn.init.normal_(added, 0.0, self._std, generator=generator)
        else:
            bound = 1 / math.sqrt(features)
            nn.init.uniform_(added, -bound, bound, generator=generator)
        self.rows = nn.Parameter(torch.cat([self.rows.detach(), added.to(self.rows.device)]))

    def remove_class(self, label: int) -> None:
        """Remove the row of one class."""
        self.rows = nn.Parameter(torch.cat([self.rows.detach()[:label], self.rows.detach()[label + 1 :]]))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return the layer's output, without activation: (rows, outputs)."""
        output: Tensor = self.linear(x) + functional.embedding(labels, self.rows)
        return output


class DecoderNoise(StoredTensors):
    """Statistics of a decoder's errors: one mean per class, and one covariance for all classes. With them a generated
    feature is a sample of p(f | y, z) = N(decoder(z, y) + mean_y, covariance)."""

    means: Tensor
    factor: Tensor  # factor @ factor.T is the covariance

    def __init__(self, features: int, signed: bool = False) -> None:
        super().__init__()
        self._signed = signed
        self.store(means=torch.empty(0, features), factor=torch.zeros(features, features))

    def learn(self, means: Tensor, covariance: Tensor) -> None:
        """Add new classes; the stored covariance becomes the mean over old and new classes."""
        old, new = len(self.means), len(means)
        pooled = (old * self.factor @ self.factor.T + new * covariance) / (old + new)
        # not a Cholesky factor: with fewer images than features the covariance is singular
        values, vectors = torch.linalg.eigh(pooled.double())
        factor = (vectors * values.clamp(min=0).sqrt()).to(pooled)
        self.store(means=torch.cat([self.means, means]), factor=factor)

    def remove_class(self, label: int) -> None:
        """Remove the mean of one class."""
        self.store(means=torch.cat([self.means[:label], self.means[label + 1 :]]))

    def added(self, generated: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
        """Return generated features plus random errors, clamped at 0 unless signed; `noise` is standard normal."""
        features = generated + self.means[labels] + noise @ self.factor.T
        return features if self._signed else functional.relu(features)


class ConditionalVAE(FeatureNetwork):
    """Encoder q(z | f, y) and decoder p(f | y, z), with two hidden layers each. The output ends in a ReLU, since
    features are not negative, unless they are `signed`; with `bounded` it ends in a sigmoid, for pixels. With
    `standardize`, encoder and decoder work on standardized features, but `encode` takes and `decode` returns features
    on their original scale. With `decoder_noise` the statistics of the decoder's errors are stored too."""

    def __init__(
        self,
        features: int,
        latent: int = 200,
        hidden: int = 512,
        bounded: bool = False,
        decoder_noise: bool = False,
        standardize: bool = False,
        signed: bool = False,
    ) -> None:
        super().__init__(features, standardize, signed)
        self.decoder_noise = DecoderNoise(features, signed) if decoder_noise else None
        self.latent, self._bounded = latent, bounded
        self.encoder_in = ConditionalLinear(features, hidden)
        self.encoder = nn.Linear(hidden, hidden)
        self.mean = nn.Linear(hidden, latent)
        self.log_variance = nn.Linear(hidden, latent)
        self.decoder_in = ConditionalLinear(latent, hidden)
        self.decoder = nn.Linear(hidden, hidden)
        self.decoder_out = nn.Linear(hidden, features)

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Add `classes` new classes."""
        self.encoder_in.grow(classes, generator)
        self.decoder_in.grow(classes, generator)

    def remove_class(self, label: int) -> None:
        """Remove a class; the labels after it decrease by one."""
        self.encoder_in.remove_class(label)
        self.decoder_in.remove_class(label)
        if self.decoder_noise is not None:
            self.decoder_noise.remove_class(label)

    def encode(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance of q(z | f, y), each (rows, latent)."""
        features = self.standardized(features)
        hidden = functional.relu(self.encoder(functional.relu(self.encoder_in(features, labels))))
        return self.mean(hidden), self.log_variance(hidden)

    def decode(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Return the generated feature for each latent code and label: (rows, features)."""
        hidden = functional.relu(self.decoder(functional.relu(self.decoder_in(latent, labels))))
        output: Tensor = self.decoder_out(hidden)
        return output.sigmoid() if self._bounded else self.restored(output)
