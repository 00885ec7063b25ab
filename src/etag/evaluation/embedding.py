"""A picture of the feature space: t-SNE to two dimensions."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def pick_rows(labels: Tensor, limit: int) -> Tensor:
    """At most `limit` rows, class by class, equally many of each (of the first classes, if there are too many)."""
    classes = sorted(set(labels.tolist()))[:limit]
    share = limit // len(classes)
    return torch.cat([(labels == label).nonzero().flatten()[:share] for label in classes])


def rows_of_some(labels: Tensor, classes_per_task: Sequence[int], classes: int, images: int) -> Tensor:
    """The first images of the first classes of each task."""
    firsts = [sum(classes_per_task[:task]) for task in range(len(classes_per_task))]
    some = [
        first + number
        for first, size in zip(firsts, classes_per_task, strict=True)
        for number in range(min(classes, size))
    ]
    return torch.cat([(labels == label).nonzero().flatten()[:images] for label in some])


def tsne(features: Tensor, seed: int) -> list[list[float]]:
    """Two coordinates a row; needs at least four rows."""
    from sklearn.manifold import TSNE

    points = features.float().cpu().numpy()
    perplexity = min(30.0, (len(points) - 1) / 3)
    plane = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(points)
    return [[round(float(x), 3), round(float(y), 3)] for x, y in np.asarray(plane)]
