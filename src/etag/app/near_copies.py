"""Images that are nearly the same: saved again, scaled, brightened or slightly cropped copies of each other.

Candidates are pairs of images whose gray values rise and fall alike in a grid of 8 x 8. For each pair, windows of one
thumbnail are compared with the other thumbnail by the correlation of their gray gradients: gradients differ even where
colors and shapes are alike. docs/models.md has what was measured.
"""

from collections.abc import Iterator
from itertools import groupby

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from etag.data.decode import Pixels

GRID = 8
BITS_APART = 28  # of 2 x 64: candidates
ALIKE = 0.8  # correlation of the gradients of near copies
SMALLEST = 64  # pixels per side: smaller images look alike without being copies
NEAREST = 100  # candidates per image: images of which more are alike, such as those of a fixed camera, end in one group
ROWS = 512  # images at a time
ZOOMS = ((1.0, 1), (0.98, 3), (0.96, 3), (0.94, 5), (0.92, 5), (0.9, 5), (0.88, 5))  # side of a window, places per side


def near_copies(thumbnails: Pixels) -> list[list[int]]:
    """Groups of rows of nearly the same images; each row is in at most one group."""
    if not len(thumbnails):
        return []
    images = torch.from_numpy(thumbnails)
    owner = list(range(len(images)))  # a group is named by its first row
    signs = torch.cat([_signs(part.float()) for part in torch.split(images, ROWS)])
    for row, others in _candidates(signs):
        views = _gradients(_windows(images[row].float()))
        for other in others[(views @ _gradients(images[others].float()).T).amax(0) > ALIKE].tolist():
            first, second = sorted((_root(owner, row), _root(owner, other)))
            owner[second] = first
    roots = sorted((_root(owner, row), row) for row in range(len(images)))
    groups = [[row for _, row in rows] for _, rows in groupby(roots, key=lambda pair: pair[0])]
    return [group for group in groups if len(group) > 1]


def _root(owner: list[int], row: int) -> int:
    while owner[row] != row:
        owner[row] = row = owner[owner[row]]
    return row


def _signs(images: Tensor) -> Tensor:
    """Whether each cell of the grid is darker than the cell after it and the cell below it: -1 or 1."""
    cells = functional.interpolate(images[:, None], (GRID + 1, GRID + 1), mode="bilinear", antialias=True)[:, 0]
    steps = cells[:, :GRID, 1:] - cells[:, :GRID, :GRID], cells[:, 1:, :GRID] - cells[:, :GRID, :GRID]
    return torch.cat([(step > 0).flatten(1) for step in steps], 1).float() * 2 - 1


def _candidates(signs: Tensor) -> Iterator[tuple[int, Tensor]]:
    """For each row the other rows that may be near copies, if there are any."""
    bits = signs.shape[1]
    for start in range(0, len(signs), ROWS):
        apart = (bits - signs[start : start + ROWS] @ signs.T) / 2
        own = torch.arange(len(apart))
        apart[own, own + start] = torch.inf
        nearest = apart.topk(min(NEAREST, apart.shape[1]), largest=False)
        for row, (distances, others) in enumerate(zip(*nearest, strict=True), start):
            if len(found := others[distances <= BITS_APART]):
                yield row, found


def _windows(image: Tensor) -> Tensor:
    """Windows of one image, all enlarged to its size: what is left of it when its edges are cropped."""
    places = [
        [[zoom, 0.0, across], [0.0, zoom, down]]
        for zoom, count in ZOOMS
        for across in np.linspace(zoom - 1, 1 - zoom, count) * (count > 1)
        for down in np.linspace(zoom - 1, 1 - zoom, count) * (count > 1)
    ]
    side = image.shape[-1]
    grid = functional.affine_grid(torch.tensor(places, dtype=torch.float32), [len(places), 1, side, side], False)
    return functional.grid_sample(image.expand(len(places), 1, -1, -1), grid, "bilinear", "border", False)[:, 0]


def _gradients(images: Tensor) -> Tensor:
    """The gradients of gray images, one row of length 1 per image; of an image of one color all are zero."""
    across, down = images[:, 1:, 1:] - images[:, 1:, :-1], images[:, 1:, 1:] - images[:, :-1, 1:]
    return functional.normalize(torch.cat([across.flatten(1), down.flatten(1)], 1), dim=1)
