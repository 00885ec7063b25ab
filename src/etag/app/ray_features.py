"""Features of a frozen backbone, computed by the workers of a Ray cluster.

Only the features are computed there: the calling process writes them to its feature store and does everything else.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from etag.core.errors import EtagError
from etag.core.memory import images_at_a_time, reuse_freed_memory
from etag.core.random import CPU, Placement, Stream
from etag.core.scenario import ImageSet
from etag.core.work import DataPass
from etag.data.batches import ImageBatches
from etag.data.images import FileImages
from etag.data.preprocess import Preprocess
from etag.engine.engine import Engine
from etag.engine.runtime import Runtime
from etag.experiments import plugins
from etag.experiments.ray_cluster import RETRIES, connect, find_ray, processor_count, reason
from etag.learner.learner import Distribute
from etag.models.backbone import Backbone
from etag.models.solver import FeatureCollector

AHEAD = 2  # batches per processor that are submitted and not yet read
STOP_SECONDS = 10.0  # for workers to stop in the middle of a batch


@dataclass(frozen=True)
class _Network:
    """What a worker needs besides the images."""

    backbone: Any  # a reference to Ray's store, from which each worker reads it once
    preprocess: Preprocess
    precision: Any  # of the runtime, resolved
    plugins: tuple[str, ...]  # files, one of which may define the backbone


@lru_cache(maxsize=1)
def _prepared(network: _Network) -> Callable[[ImageSet], Tensor]:
    """Prepare a worker process once for all its batches; returns what computes the features of images."""
    torch.set_num_threads(1)
    reuse_freed_memory()
    plugins.load(network.plugins)
    module = FeatureCollector(find_ray().get(network.backbone))
    engine = Engine(Runtime(Fabric(accelerator="cpu", devices=1, precision=network.precision)))
    preprocess = network.preprocess

    def compute(images: ImageSet) -> Tensor:
        size = images_at_a_time(len(images), preprocess.size, CPU)
        unused = Stream.root(0)  # nothing is random
        batches = ImageBatches(images, preprocess, size, unused, Placement(), augment=False, shuffle=False)
        return engine.run_pass(DataPass("features", module, batches))["features"]

    return compute


def _compute_features(network: _Network, images: ImageSet) -> Tensor | str:
    """Executed by a worker; returns the features, or why an image could not be read."""
    try:
        return _prepared(network)(images)
    except EtagError as error:
        return str(error)


class _Workers:
    """The workers of a cluster, and what they were asked to compute."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._task = ray.remote(num_cpus=1, max_retries=RETRIES)(_compute_features)
        self._submitted: set[Any] = set()  # references to results that were not read yet

    @property
    def most_batches(self) -> int:
        """How many batches should be submitted at a time."""
        return AHEAD * processor_count(self._ray)

    def submit(self, network: _Network, images: ImageSet) -> Any:
        """Have features computed; returns a reference to the result."""
        reference = self._task.remote(network, images)
        self._submitted.add(reference)
        return reference

    def result(self, reference: Any) -> Tensor:
        """Wait for the features; what a worker could not do raises an EtagError."""
        try:
            result: Tensor | str = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            raise EtagError(f"a Ray worker could not compute features: {reason(error)}") from error
        self._submitted.remove(reference)
        if isinstance(result, str):
            raise EtagError(result)
        return result

    def stop(self) -> None:
        """Interrupt what is still being computed; Ray would report workers that end in the middle of their work."""
        for reference in self._submitted:
            self._ray.cancel(reference)
        if self._submitted:
            self._ray.wait(list(self._submitted), num_returns=len(self._submitted), timeout=STOP_SECONDS)


@dataclass(frozen=True)
class RemoteFeatures:
    """An image set whose rows are features, which Ray workers compute when they are read. If a worker is lost, another
    one computes its batch."""

    images: ImageSet
    network: _Network
    workers: _Workers
    holds_features = True

    @property
    def labels(self) -> Tensor:
        """Class number of each image."""
        return self.images.labels

    def __len__(self) -> int:
        return len(self.images)

    def read(self, row_batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield the features of each tensor of rows, in order; a few batches are computed at a time."""
        most, references = self.workers.most_batches, deque[Any]()
        for rows in row_batches:
            if len(references) == most:
                yield self.workers.result(references.popleft())
            references.append(self.workers.submit(self.network, self.images.select(rows)))
        while references:
            yield self.workers.result(references.popleft())

    def select(self, rows: Tensor) -> Self:
        """Return a set of these rows only."""
        return replace(self, images=self.images.select(rows))

    def join(self, others: list[Self]) -> Self:
        """Return this set followed by the others, of the same backbone, as one set."""
        return replace(self, images=self.images.join([other.images for other in others]))


class RayFeatures:
    """Connects to a Ray cluster to compute features there: to the one at the address, or to one that is started on this
    machine with this number of processors, by default all. The workers load these plug-ins."""

    def __init__(
        self, address: str | None = None, plugin_files: Sequence[str] = (), processors: int | None = None
    ) -> None:
        find_ray(address)  # an error now, not after the images were listed
        self._address, self._plugins, self._processors = address, tuple(plugin_files), processors

    @contextmanager
    def connected(self, precision: str) -> Iterator[Distribute]:
        """Inside the `with` block, features of images can be computed by the cluster, in this precision."""
        ray = connect(self._address, self._processors)
        try:
            workers = _Workers(ray)

            def distribute(backbone: Backbone, preprocess: Preprocess, images: ImageSet) -> ImageSet:
                network = _Network(ray.put(deepcopy(backbone).to(CPU)), preprocess, precision, self._plugins)
                return RemoteFeatures(_for_workers(images), network, workers)

            try:
                yield distribute
            finally:
                workers.stop()
        finally:
            ray.shutdown()


def _for_workers(images: ImageSet) -> ImageSet:
    """The images as workers read them: files by their absolute path, decoded in the worker's own process."""
    if not isinstance(images, FileImages):
        return images
    return replace(images, files=np.array([os.path.abspath(file) for file in images.files]), workers=0)
