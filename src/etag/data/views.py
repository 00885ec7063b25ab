"""Self-supervised views: K transformed versions of an image, which auxiliary classifiers learn to tell apart."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Literal

import torch
from torch import Tensor

from etag.core.errors import EtagError
from etag.core.outputs import Views


@dataclass(frozen=True)
class ViewTransforms:
    """Named image transformations, the first is the identity. View r of class y has the label count * y + r."""

    name: str
    transforms: tuple[Callable[[Tensor], Tensor], ...]
    channels: int | None = None  # number of channels that images must have; None allows any
    divisor: int = 1  # the image side must be divisible by this

    @property
    def count(self) -> int:
        """Number of views per image."""
        return len(self.transforms)

    def check(self, channels: int, size: int) -> None:
        """Raise an EtagError if images of this many channels and pixels per side cannot have these views."""
        if self.channels not in (None, channels):
            raise EtagError(
                f"the views '{self.name}' need images with {self.channels} channels, but these have {channels}: "
                "choose another embedding.views."
            )
        if size % self.divisor:
            raise EtagError(
                f"the views '{self.name}' need an image side divisible by {self.divisor}, but it is {size} pixels: "
                f"set data.size={size + self.divisor - size % self.divisor}, or choose another embedding.views."
            )

    def all_views(self, images: Tensor, labels: Tensor) -> Views:
        """Return all views of a batch: first all images, then all of them under view 1, and so on."""
        rows = torch.cat([view(images) for view in self.transforms])
        views = torch.arange(self.count, device=labels.device).repeat_interleave(len(labels))
        return Views(_channels_last(rows), len(images), labels=labels.repeat(self.count) * self.count + views)

    def selected_views(self, images: Tensor, labels: Tensor, chosen: Tensor, image_rows: Tensor | None = None) -> Views:
        """Return the images and the chosen views of them. `chosen[i]` holds the view numbers of image number
        `image_rows[i]` of the batch; None means all images in order. Both are on the CPU."""
        device, count = images.device, len(images)
        image_rows = torch.arange(count) if image_rows is None else image_rows
        rows, row_of = [images], torch.zeros(self.count, count, dtype=torch.long)  # row_of[view, image]
        row_of[0] = torch.arange(count)  # the images themselves are always there
        for view in range(1, self.count):
            with_view = image_rows[(chosen == view).any(1)]
            row_of[view, with_view] = torch.arange(count, count + len(with_view))
            rows.append(self.transforms[view](images[with_view.to(device, non_blocking=True)]))
            count += len(with_view)
        owners = image_rows[:, None].expand_as(chosen)  # the image of each chosen view
        picked, owners, views = (
            index.flatten().to(device, non_blocking=True) for index in (row_of[chosen, owners], owners, chosen)
        )
        inputs = _channels_last(torch.cat(rows))
        return Views(inputs, len(images), picked, labels[owners] * self.count + views)

    def choose(self, positions: Tensor, number: int) -> Tensor:
        """Return `number` view numbers per image: p, p + 1, ... modulo `count`, where p is the image's place in a
        random permutation of the global batch. So all views are chosen about equally often."""
        return (positions[:, None] + torch.arange(number)) % self.count


def _channels_last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def _tiles(order: tuple[int, ...], images: Tensor) -> Tensor:
    """Return the images, cut into 2 x 2 tiles, with tile order[i] at position i."""
    tiles = [tile for half in images.chunk(2, dim=2) for tile in half.chunk(2, dim=3)]
    upper, lower = ([tiles[i] for i in row] for row in (order[:2], order[2:]))
    return torch.cat([torch.cat(upper, dim=3), torch.cat(lower, dim=3)], dim=2)


def _channels(order: tuple[int, ...], images: Tensor) -> Tensor:
    return images[:, list(order)]


IDENTITY = ViewTransforms("none", (lambda images: images,))
ROTATIONS = ViewTransforms("rotation", tuple(partial(torch.rot90, k=turns, dims=(2, 3)) for turns in range(4)))
# four of the 24 orders of four tiles, chosen so that no two have the same tile in the same place
TILES = (0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0)
JIGSAW = ViewTransforms("jigsaw", tuple(partial(_tiles, order) for order in TILES), divisor=2)
COLORS = ViewTransforms("color", tuple(partial(_channels, order) for order in permutations(range(3))), channels=3)

ViewsName = Literal["none", "rotation", "jigsaw", "color"]
VIEW_TRANSFORMS: dict[str, ViewTransforms] = {views.name: views for views in (IDENTITY, ROTATIONS, JIGSAW, COLORS)}
