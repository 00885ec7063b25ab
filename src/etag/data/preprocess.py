"""Turning uint8 images into network inputs: whole batches at a time, on the device."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from etag.core.images import Interpolation, Resize
from etag.core.random import Draws

MAX_SIDE = 1 << 14  # pixels
AREAS, RATIOS = (0.08, 1.0), (3 / 4, 4 / 3)  # of a resized crop: share of the image area, width / height


@dataclass(frozen=True)
class Preprocess:
    """Crop, mirror and normalize square images of at least `size` pixels per side. Training takes a random window of
    `size` pixels: from the image if it is larger, otherwise from the zero-padded image (padding 4 at 32 pixels, in
    proportion at other sizes). Testing takes the center. With `augment` off, training takes the center too and never
    mirrors: for data in which the position of a pixel matters."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int
    flip: bool
    resized_crop: bool = False  # train on windows of random size and shape, scaled to `size`
    augment: bool = True
    interpolation: Interpolation = "bilinear"
    crop: float | None = None  # see `Resize`

    @property
    def resize(self) -> Resize:
        """How images of any size become those that the network sees."""
        return Resize(self.size, self.interpolation, self.crop)

    def check(self, channels: int) -> None:
        """Raise a ValueError unless images of this many channels can be preprocessed like this."""
        if not 0 < self.size <= MAX_SIDE:
            raise ValueError(f"the size of its images is {self.size} pixels")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != channels or not all(map(math.isfinite, values)):
                raise ValueError(f"the {name} of its images is {list(values)}, with {channels} channel(s)")
        if min(self.std) <= 0:
            raise ValueError(f"the std of its images is {list(self.std)}")
        if self.crop is not None and not 0 < self.crop <= 1:
            raise ValueError(f"the crop of its images is {self.crop}")

    def augmented(self, images: Tensor, draws: Draws, rows: int) -> Tensor:
        """Return randomly augmented, normalized inputs, or centered ones if `self.augment` is off; `rows` is the size
        of the global batch."""
        mirror = draws.integers("mirror", 0, 2, rows).bool() if self.flip else None
        if not self.augment:
            return self.centered(images)
        if self.resized_crop:
            box = draws.uniform("crop box", rows, 4)
            return self._normalize(resized_crop(images, self.size, box, mirror))
        padding = round(self.size / 8) if images.shape[-1] == self.size else 0
        offsets = images.shape[-1] + 2 * padding - self.size + 1
        down = draws.integers("crop down", 0, offsets, rows)
        right = draws.integers("crop right", 0, offsets, rows)
        return self._normalize(random_crop(images, self.size, padding, down, right, mirror))

    def centered(self, images: Tensor) -> Tensor:
        """Return the normalized center of each image; nothing is random."""
        start = (images.shape[-1] - self.size) // 2
        center = slice(start, start + self.size)
        return self._normalize(images[:, :, center, center])

    def to_pixels(self, inputs: Tensor) -> Tensor:
        """Undo the normalization: return pixels in [0, 1]."""
        scale, shift = _affine(self.mean, self.std, inputs.device)
        return ((inputs - shift) / (255 * scale)).clamp(0, 1)

    def to_inputs(self, pixels: Tensor) -> Tensor:
        """Normalize pixels in [0, 1], the inverse of `to_pixels`; differentiable."""
        scale, shift = _affine(self.mean, self.std, pixels.device)
        return (pixels * (255 * scale) + shift).contiguous(memory_format=torch.channels_last)

    def _normalize(self, images: Tensor) -> Tensor:
        """Return floats of about zero mean and unit variance, in channels_last order."""
        scale, shift = _affine(self.mean, self.std, images.device)
        # always a copy: `images` may be the data set itself, and the next line works in place
        floats = images.to(torch.float32, memory_format=torch.channels_last, copy=True)
        return floats.mul_(scale).add_(shift)


def random_crop(images: Tensor, size: int, padding: int, down: Tensor, right: Tensor, mirror: Tensor | None) -> Tensor:
    """Return one window per zero-padded image at offset (down, right), mirrored where `mirror` is true."""
    padded = functional.pad(images, (padding,) * 4)
    if mirror is not None:
        # mirroring before the crop equals mirroring after it, except for the offset, which is random anyway
        padded = torch.where(mirror[:, None, None, None], padded.flip(3), padded)
    windows = padded.unfold(2, size, 1).unfold(3, size, 1)
    return windows[torch.arange(len(images), device=images.device), :, down, right]


def resized_crop(images: Tensor, size: int, box: Tensor, mirror: Tensor | None) -> Tensor:
    """Return one window of random area, shape and position per image, scaled to `size`, as floats in 0 .. 255. `box`
    holds four uniform numbers per image: for area, aspect ratio and the two offsets."""
    area = AREAS[0] + (AREAS[1] - AREAS[0]) * box[:, 0]
    ratio = RATIOS[0] * (RATIOS[1] / RATIOS[0]) ** box[:, 1]
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    # in the coordinates of affine_grid the image spans [-1, 1] x [-1, 1]
    x, y = (1 - width) * (2 * box[:, 2] - 1), (1 - height) * (2 * box[:, 3] - 1)
    if mirror is not None:
        width = torch.where(mirror, -width, width)
    zero = torch.zeros_like(x)
    window = torch.stack([width, zero, x, zero, height, y], dim=1).view(-1, 2, 3)
    grid = functional.affine_grid(window, [len(images), images.shape[1], size, size], align_corners=False)
    return functional.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)


@lru_cache(maxsize=8)
def _affine(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the scale and shift that normalize pixels in 0 .. 255, each of shape (1, channels, 1, 1)."""
    center, spread = torch.tensor(mean), torch.tensor(std)
    scale = (1 / (255 * spread)).view(1, -1, 1, 1)
    return scale.to(device), (-center / spread).view(1, -1, 1, 1).to(device)
