"""Labels that are likely wrong, by what the other images of a folder say about each image.

A ridge regression of the one-hot labels on the features gives each class a score: near 1 for the class of an image and
near 0 for the others. The scores of an image come from a regression without that image (leave-one-out).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from etag.data.images import Features
from etag.data.rows import HOLD_OUT_EVERY
from etag.learner.versions import Name
from etag.methods.parts.penalty import PenaltyErrors, ridge_problem
from etag.methods.parts.statistics import ClassStatistics, class_sums

MARGIN = 0.5  # between the scores of another class and of the own class; docs/models.md has what was measured
FEWEST = HOLD_OUT_EVERY  # images of the own class: fewer say too little about one of them
ROWS = 1024  # at a time


@dataclass(frozen=True)
class WrongLabel:
    """An image whose label is likely wrong."""

    path: str
    label: Name
    predicted: Name


def wrong_labels(features: Features, files: Sequence[str], names: Sequence[Name]) -> list[WrongLabel]:
    """The images whose label is likely wrong, by their files and with the names of the classes; the surest first."""
    found, labels = likely_wrong(features), features.labels.tolist()
    return [WrongLabel(files[row], names[labels[row]], names[predicted]) for row, predicted in found.items()]


def likely_wrong(features: Features) -> dict[int, int]:
    """The rows whose label (0, 1, ...) is likely wrong, with the label that is predicted; the surest come first."""
    counts = features.labels.bincount()
    if len(counts) < 2 or counts.max() < FEWEST:
        return {}

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        rows = torch.split(torch.arange(len(features)), ROWS)
        for part, own in zip(features.read(rows), rows, strict=True):
            yield part.double(), features.labels[own]

    statistics, errors = ClassStatistics(features.matrix.shape[1]), PenaltyErrors()
    statistics.grow(len(counts))
    for part, labels in batches():
        statistics.add(range(len(counts)), class_sums(part, labels, range(len(counts))))
    problem = ridge_problem(statistics)
    for part, labels in batches():
        errors.add(problem.squared_left_out_errors(part, labels))
    penalty = [errors.best or problem.spread]
    scores = -torch.cat([error for batch in batches() for error in problem.left_out_errors(*batch, penalty)])
    own = scores.gather(1, features.labels[:, None]).flatten() + 1  # its error is 1 minus the score
    others, predicted = scores.scatter(1, features.labels[:, None], -torch.inf).max(1)
    margin = torch.where(counts[features.labels] < FEWEST, -torch.inf, others - own)
    rows = margin.argsort(descending=True, stable=True)[: int((margin > MARGIN).sum())]
    return dict(zip(rows.tolist(), predicted[rows].tolist(), strict=True))
