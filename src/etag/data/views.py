"""Self-supervised views: K versions of an image that a classifier can tell apart."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Views:
    """A named set of transformations, the first of which leaves the image as it is.

    View r of image k is row k * count + r, and its label is count * y + r, so rows `::count` are
    the images themselves.
    """

    name: str
    transforms: tuple[Callable[[Tensor], Tensor], ...]

    @property
    def count(self) -> int:
        """How many views an image has."""
        return len(self.transforms)

    def of(self, images: Tensor) -> Tensor:
        """All views of a batch of images."""
        batch = torch.stack([view(images) for view in self.transforms], dim=1).flatten(0, 1)
        return batch.contiguous(memory_format=torch.channels_last)

    def labels(self, labels: Tensor) -> Tensor:
        """The augmented label of every view."""
        return (labels[:, None] * self.count + torch.arange(self.count, device=labels.device)).flatten()


def _quarter_turns(turns: int) -> Callable[[Tensor], Tensor]:
    return lambda images: images.rot90(turns, dims=(2, 3))


IDENTITY = Views("none", (lambda images: images,))
ROTATIONS = Views("rotation", tuple(_quarter_turns(turns) for turns in range(4)))
