"""Imprinting: initialize the rows of new classes with the features of these classes."""

import torch
from torch import Tensor
from torch.nn import functional

from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import DataPass, Plan
from etag.models.heads import CosineHead, LinearHead


def imprint(head: LinearHead, task: Task, features_pass: DataPass, stream: Stream) -> Plan:
    """Set the last block of a cosine or proxy head to the directions of the task's features, class by class."""
    result = yield features_pass
    assert isinstance(head, CosineHead)
    seed = int(torch.randint(2**31, (1,), generator=stream.torch_generator("k-means")))
    classes = (result["features"][result["labels"] == label] for label in range(task.num_old, task.num_seen))
    head.imprint(torch.cat([centers(features, head.proxies, seed) for features in classes]))


def centers(features: Tensor, count: int, seed: int) -> Tensor:
    """The mean direction of a class's features, or `count` k-means centers (repeated if there are too few images)."""
    directions = functional.normalize(features)
    if count == 1:
        return directions.mean(0, keepdim=True)
    if len(directions) <= count:
        return directions.repeat(-(-count // len(directions)), 1)[:count]
    from sklearn.cluster import KMeans  # takes long to import

    clusters = KMeans(count, n_init=1, random_state=seed).fit(directions.double().cpu().numpy())
    return torch.from_numpy(clusters.cluster_centers_).to(features)
