"""Features in two dimensions, for figures: which rows to take, and t-SNE."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

LEAST_ROWS = 4  # t-SNE needs so many


def pick_rows(labels: Tensor, limit: int) -> Tensor:
    """Indices of at most `limit` rows, class by class, equally many of each class (only the first classes if there
    are more than `limit`)."""
    classes = sorted(set(labels.tolist()))[:limit]
    share = limit // len(classes)
    return torch.cat([(labels == label).nonzero().flatten()[:share] for label in classes])


def tsne(features: npt.ArrayLike, seed: int) -> list[list[float]]:
    """Two coordinates per row of `features`; the same for the same seed. Needs at least `LEAST_ROWS` rows."""
    from sklearn.manifold import TSNE

    points = np.asarray(features, dtype=np.float32)
    if not np.ptp(points, axis=0).any():  # all rows are equal, which t-SNE cannot scale
        return [[0.0, 0.0] for _ in points]
    perplexity = min(30.0, (len(points) - 1) / 3)
    init = "pca" if points.shape[1] > 1 else "random"
    plane = TSNE(perplexity=perplexity, init=init, random_state=seed).fit_transform(points)
    return [[round(float(x), 3), round(float(y), 3)] for x, y in np.asarray(plane)]
