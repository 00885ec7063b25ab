"""A picture of the feature space: t-SNE to two dimensions."""

import numpy as np
import torch
from torch import Tensor


def pick_rows(labels: Tensor, limit: int) -> Tensor:
    """At most `limit` rows, class by class, equally many of each (of the first classes, if there are too many)."""
    classes = sorted(set(labels.tolist()))[:limit]
    share = limit // len(classes)
    return torch.cat([(labels == label).nonzero().flatten()[:share] for label in classes])


def tsne(features: Tensor, seed: int) -> list[list[float]]:
    """Two coordinates a row; needs at least four rows."""
    from sklearn.manifold import TSNE

    points = features.float().cpu().numpy()
    perplexity = min(30.0, (len(points) - 1) / 3)
    plane = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(points)
    return [[round(float(x), 3), round(float(y), 3)] for x, y in np.asarray(plane)]
