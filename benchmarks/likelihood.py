"""How much faster GC's likelihoods are for all images and classes at once than one image and one class at a time.

    python benchmarks/likelihood.py [--images 256] [--classes 100] [--rounds 5]

Both ways compute the same numbers, which is checked, with the same networks: features of 512 numbers, 85 hidden
units, 20 latent ones. They take turns; printed are the fastest and the median round of each.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from etag.core.random import Stream
from etag.models.class_vaes import ClassVAEs
from etag.models.initial import build

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


def seconds(work: Callable[[], Tensor]) -> tuple[float, Tensor]:
    begun = time.perf_counter()
    found = work()
    return time.perf_counter() - begun, found


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    stream = Stream.root(0)
    vaes = build(lambda: ClassVAEs(options.classes, FEATURES, LATENT, HIDDEN), stream.torch_generator("vaes"))
    singles = [Single(vaes, c) for c in range(options.classes)]
    features = torch.randn(options.images, FEATURES, generator=stream.torch_generator("features"))
    print(f"{options.images} images, {options.classes} classes, one thread, {options.rounds} rounds\n")
    print("| samples | one at a time, s: fastest (median) | at once, s: fastest (median) | ratio: fastest (medians) |")
    print("|---|---|---|---|")
    for samples in (1, 10):
        noise = torch.randn(samples, LATENT, generator=stream.torch_generator("noise"))
        if samples == 1:
            noise.zero_()

        def one_at_a_time(noise: Tensor = noise) -> Tensor:
            return torch.stack([torch.stack([single(row, noise) for single in singles]) for row in features])

        def at_once(noise: Tensor = noise) -> Tensor:
            return vaes.log_likelihoods(features, noise)

        times: dict[str, list[float]] = {"slow": [], "fast": []}
        for _ in range(options.rounds):
            slow, expected = seconds(one_at_a_time)
            fast, found = seconds(at_once)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-2)
            times["slow"].append(slow)
            times["fast"].append(fast)
        least = {name: min(values) for name, values in times.items()}
        middle = {name: statistics.median(values) for name, values in times.items()}
        name = "mean" if samples == 1 else str(samples)
        cells = [f"{least[way]:.4f} ({middle[way]:.4f})" for way in ("slow", "fast")]
        ratios = f"{least['slow'] / least['fast']:.1f} ({middle['slow'] / middle['fast']:.1f})"
        print(f"| {name} | {cells[0]} | {cells[1]} | {ratios} |")


if __name__ == "__main__":
    main()
