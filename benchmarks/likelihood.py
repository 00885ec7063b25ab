"""How much faster GC's likelihoods are for all images and classes at once than one image and one class at a time.

    OMP_NUM_THREADS=1 python benchmarks/likelihood.py [--images 256] [--classes 100] [--rounds 5]

Both ways compute the same numbers, which is checked, with the same networks: features of 512 numbers, 85 hidden
units, 20 latent ones. They take turns.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from etag.core.random import Stream
from etag.models.class_vaes import ClassVAEs
from etag.models.initial import build
from measure import alternate, conditions, parser, print_table, row

FEATURES, HIDDEN, LATENT = 512, 85, 20


class Single(nn.Module):
    """The VAE of one class, in plain layers."""

    def __init__(self, vaes: ClassVAEs, c: int) -> None:
        super().__init__()
        for name in ("encoder", "mean", "log_variance", "decoder", "decoder_out"):
            weight, bias = getattr(vaes, name).weight[c], getattr(vaes, name).bias[c, 0]
            layer = nn.Linear(*weight.shape)
            layer.weight.data.copy_(weight.T)
            layer.bias.data.copy_(bias)
            setattr(self, name, layer)

    def forward(self, feature: Tensor, noise: Tensor) -> Tensor:
        hidden = functional.relu(self.encoder(feature))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        codes = mean + noise * torch.exp(0.5 * log_variance)
        made = self.decoder_out(functional.relu(self.decoder(codes)))
        log_p = -0.5 * ((made - feature).square().sum(1) + FEATURES * math.log(2 * math.pi))
        ratio = 0.5 * (log_variance + noise.square() - codes.square()).sum(1)
        return torch.logsumexp(log_p + ratio, 0) - math.log(len(noise))


@torch.inference_mode()
def main() -> None:
    options = parser(__doc__, images=256, classes=100, rounds=5).parse_args()
    stream = Stream.root(0)
    vaes = build(lambda: ClassVAEs(options.classes, FEATURES, LATENT, HIDDEN), stream.torch_generator("vaes"))
    singles = [Single(vaes, c) for c in range(options.classes)]
    features = torch.randn(options.images, FEATURES, generator=stream.torch_generator("features"))
    rows = []
    for samples in (1, 10):
        noise = torch.randn(samples, LATENT, generator=stream.torch_generator("noise"))
        if samples == 1:
            noise.zero_()

        def one_at_a_time(noise: Tensor = noise) -> Tensor:
            return torch.stack([torch.stack([single(feature, noise) for single in singles]) for feature in features])

        def at_once(noise: Tensor = noise) -> Tensor:
            return vaes.log_likelihoods(features, noise)

        torch.testing.assert_close(at_once(), one_at_a_time(), rtol=1e-4, atol=1e-2)
        times = alternate({"one at a time": one_at_a_time, "at once": at_once}, options.rounds)
        name = "mean" if samples == 1 else f"{samples} samples"
        rows.append(row(f"{name}, {options.classes} classes, {conditions(options)}", times, options.images))
    print_table(rows)


if __name__ == "__main__":
    main()
