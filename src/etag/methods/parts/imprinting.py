"""Imprinting: rows of new classes begin where the features of these classes are."""

import torch
from torch import Tensor
from torch.nn import functional

from etag.core.scenario import Task
from etag.core.work import Plan
from etag.methods.base import Method
from etag.models.heads import CosineHead


def imprint(method: Method, task: Task) -> Plan:
    """Set the last block of a cosine or proxy head to the task's features, as the untrained solver sees them."""
    found = yield method.features_pass("imprint", task.train)
    head = method.solver.head
    assert isinstance(head, CosineHead)
    seed = int(torch.randint(2**31, (1,), generator=method.stream("imprint").generator("k-means")))
    classes = (found["features"][found["labels"] == label] for label in range(task.old, task.seen))
    head.imprint(torch.cat([centers(features, head.proxies, seed) for features in classes]))


def centers(features: Tensor, count: int, seed: int) -> Tensor:
    """The mean of a class's directions, or the centers of their k-means clusters. Where there are fewer images than
    centers, some stand twice."""
    directions = functional.normalize(features)
    if count == 1:
        return directions.mean(0, keepdim=True)
    if len(directions) <= count:
        return directions.repeat(-(-count // len(directions)), 1)[:count]
    from sklearn.cluster import KMeans  # takes long to import

    found = KMeans(count, n_init=1, random_state=seed).fit(directions.double().cpu().numpy())
    return torch.from_numpy(found.cluster_centers_).to(features)
