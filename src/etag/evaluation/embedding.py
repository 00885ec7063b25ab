"""A picture of the feature space: t-SNE to two dimensions."""

import numpy as np
import torch
from torch import Tensor


def pick_rows(labels: Tensor, limit: int) -> Tensor:
    """At most `limit` rows, the same number of each class, in order."""
    classes = sorted(set(labels.tolist()))
    share = max(1, limit // len(classes))
    rows = [(labels == label).nonzero().flatten()[:share] for label in classes]
    return torch.cat(rows)


def tsne(features: Tensor, seed: int) -> list[list[float]]:
    """Two coordinates a row; needs at least four rows."""
    from sklearn.manifold import TSNE

    points = features.float().cpu().numpy()
    perplexity = min(30.0, (len(points) - 1) / 3)
    plane = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(points)
    return [[round(float(x), 3), round(float(y), 3)] for x, y in np.asarray(plane)]
