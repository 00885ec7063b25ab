"""From uint8 images to network inputs: whole batches at a time, on the device."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from etag.core.random import Draws


@dataclass(frozen=True)
class Preprocess:
    """Normalisation, and for training a random crop of the padded image and a random mirror image."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int
    flip: bool

    @property
    def padding(self) -> int:
        """4 pixels at 32 (Experiments, Datasets), the same share of other sizes."""
        return round(self.size / 8)

    def train(self, images: Tensor, draws: Draws, rows: int) -> Tensor:
        """Augmented inputs; `rows` is the size of the global batch."""
        offsets = 2 * self.padding + 1
        down = draws.integers("crop down", 0, offsets, rows)
        right = draws.integers("crop right", 0, offsets, rows)
        mirror = draws.integers("mirror", 0, 2, rows).bool() if self.flip else None
        return self.normalise(random_crop(images, self.padding, down, right, mirror))

    def normalise(self, images: Tensor) -> Tensor:
        """Float inputs of about zero mean and unit variance, in channels_last order."""
        scale, shift = _affine(self.mean, self.std, images.device)
        floats = images.to(torch.float32, memory_format=torch.channels_last)
        return floats.mul_(scale).add_(shift)


def random_crop(images: Tensor, padding: int, down: Tensor, right: Tensor, mirror: Tensor | None) -> Tensor:
    """Crop each zero-padded image at its own offset; where `mirror` is true, turn left and right around."""
    height, width = images.shape[-2:]
    padded = functional.pad(images, (padding,) * 4)
    if mirror is not None:
        # mirroring before the crop is the same as after it, up to the (random) offset
        padded = torch.where(mirror[:, None, None, None], padded.flip(3), padded)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(len(images), device=images.device), :, down, right]


@lru_cache(maxsize=8)
def _affine(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    centre, spread = torch.tensor(mean), torch.tensor(std)
    scale = (1 / (255 * spread)).view(1, -1, 1, 1)
    return scale.to(device), (-centre / spread).view(1, -1, 1, 1).to(device)
