"""Self-supervised views: K versions of an image that a classifier can tell apart."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from typing import Literal

import torch
from torch import Tensor

from etag.core.errors import EtagError
from etag.core.outputs import Views


@dataclass(frozen=True)
class ViewTransforms:
    """A named set of transformations, the first of which leaves the image as it is.

    View r of an image of class y has the label count * y + r.
    """

    name: str
    transforms: tuple[Callable[[Tensor], Tensor], ...]
    channels: int | None = None  # that an image must have
    divisor: int = 1  # of an image's side

    @property
    def count(self) -> int:
        """How many views an image has."""
        return len(self.transforms)

    def check(self, channels: int, size: int) -> None:
        """Refuse images that these views cannot be made of."""
        if self.channels not in (None, channels):
            raise EtagError(
                f"the view '{self.name}' needs images of {self.channels} channels, these have {channels}: choose "
                "another embedding.views."
            )
        if size % self.divisor:
            raise EtagError(
                f"the view '{self.name}' cuts a side into {self.divisor} parts, which {size} pixels do not allow: "
                f"set data.size={size + self.divisor - size % self.divisor}, or another embedding.views."
            )

    def of(self, images: Tensor, labels: Tensor) -> Views:
        """All views of a batch of images, view by view."""
        rows = torch.cat([view(images) for view in self.transforms])
        kinds = torch.arange(self.count, device=labels.device).repeat_interleave(len(labels))
        return Views(_channels_last(rows), len(images), labels=labels.repeat(self.count) * self.count + kinds)

    def some(self, images: Tensor, labels: Tensor, chosen: Tensor, of: Tensor | None = None) -> Views:
        """The views that are chosen of each image, or of some images only: a row each, of numbers on the CPU."""
        device, count = images.device, len(images)
        of = torch.arange(count) if of is None else of
        rows, place = [images], torch.zeros(self.count, count, dtype=torch.long)
        place[0] = torch.arange(count)  # the images are there in any case
        for kind in range(1, self.count):
            whose = of[(chosen == kind).any(1)]
            place[kind, whose] = torch.arange(count, count + len(whose))
            rows.append(self.transforms[kind](images[whose.to(device, non_blocking=True)]))
            count += len(whose)
        owners = of[:, None].expand_as(chosen)
        picked, owners, kinds = (
            index.flatten().to(device, non_blocking=True) for index in (place[chosen, owners], owners, chosen)
        )
        shown = _channels_last(torch.cat(rows))
        return Views(shown, len(images), picked, labels[owners] * self.count + kinds)

    def choose(self, places: Tensor, number: int) -> Tensor:
        """So many views for each row, all of them equally often, from the rows' places in a random order."""
        return (places[:, None] + torch.arange(number)) % self.count


def _channels_last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def _quarter_turns(turns: int) -> Callable[[Tensor], Tensor]:
    return lambda images: images.rot90(turns, dims=(2, 3))


def _tiles(order: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Tile i of the 2 x 2 is the one that was at order[i]."""

    def view(images: Tensor) -> Tensor:
        tiles = [tile for half in images.chunk(2, dim=2) for tile in half.chunk(2, dim=3)]
        upper, lower = ([tiles[i] for i in row] for row in (order[:2], order[2:]))
        return torch.cat([torch.cat(upper, dim=3), torch.cat(lower, dim=3)], dim=2)

    return view


def _channels(order: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    return lambda images: images[:, list(order)]


IDENTITY = ViewTransforms("none", (lambda images: images,))
ROTATIONS = ViewTransforms("rotation", tuple(_quarter_turns(turns) for turns in range(4)))
# of the 24 orders of four tiles, four of which no two have a tile in the same place
JIGSAW = ViewTransforms(
    "jigsaw", tuple(map(_tiles, [(0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0)])), divisor=2
)
COLORS = ViewTransforms("color", tuple(map(_channels, permutations(range(3)))), channels=3)

ViewsName = Literal["none", "rotation", "jigsaw", "color"]
VIEW_TRANSFORMS: dict[str, ViewTransforms] = {views.name: views for views in (IDENTITY, ROTATIONS, JIGSAW, COLORS)}
