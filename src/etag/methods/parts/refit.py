"""Fitting the head once more, to features of new images and generated features of old classes (option `refit`)."""

import math
from collections.abc import Iterable, Iterator
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from etag.core.options import Options, TrainOptions
from etag.core.random import Placement, Stream
from etag.core.scenario import Task
from etag.core.work import ParameterGroup, Phase, Plan
from etag.losses.temperature import fit_temperature
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.generators import FeatureGenerator, HeadObjective, normal_sampler
from etag.methods.parts.penalty import PENALTIES, ridge_problem
from etag.methods.parts.statistics import ClassStatistics, class_sums
from etag.models.heads import LinearHead

AT_A_TIME = 8192  # features that are generated and added up at once
LEFT_OUT = 20_000  # features at most whose leave-one-out errors choose penalty and temperature


class TrainedRefit(TrainOptions):
    """The head is trained."""

    kind: Literal["train"] = Field("train", description="the head is trained by these options")

    def applies_to(self, task: Task) -> bool:
        """Whether the head is refitted after this task: not after the base task, whose images it has just learned."""
        return task.index > 0

    def plan(
        self,
        head: LinearHead,
        generator: FeatureGenerator,
        task: Task,
        features: CachedFeatures,
        weight: float,
        stream: Stream,
        placement: Placement,
    ) -> Plan:
        """Train the head; `weight` is that of generated features."""
        old = torch.arange(task.num_old).to(features.labels)
        yield head_phase(head, generator, task, features, self, old, (1.0, weight), stream, placement)


class RidgeRefit(Options):
    """The head is computed by ridge regression, without training."""

    kind: Literal["ridge"] = Field("ridge", description="the head is computed by ridge regression")

    def applies_to(self, task: Task) -> bool:  # noqa: ARG002
        """Always true: it costs little, and so the head is on the same scale after every task."""
        return True

    @torch.no_grad()
    def plan(
        self,
        head: LinearHead,
        generator: FeatureGenerator,
        task: Task,
        features: CachedFeatures,
        weight: float,  # noqa: ARG002
        stream: Stream,
        placement: Placement,
    ) -> Plan:
        """Compute the head from one pass of the new features, and from as many generated features of each old class
        as a new class has on average. (Of several passes the images would be the same, so that leaving one out would
        not show how new images fare.) Generated features are used once and not stored: there may be many."""
        new, labels = features.features[0], features.labels
        per_class = max(1, round(len(labels) / task.num_new))
        old = torch.arange(task.num_old).repeat_interleave(per_class).to(labels)

        def parts() -> Iterator[tuple[Tensor, Tensor]]:
            for number, part in enumerate(torch.split(old, AT_A_TIME) if len(old) else ()):
                generated = generator.sample(part, normal_sampler(stream.child(number), len(part), placement.device))
                assert generated is not None  # EtagOptions allows ridge only with generators that have samples
                yield generated, part
            yield from zip(torch.split(new, AT_A_TIME), torch.split(labels, AT_A_TIME), strict=True)

        fit_ridge(head, parts(), len(old) + len(labels))
        yield from ()


def fit_ridge(head: LinearHead, parts: Iterable[tuple[Tensor, Tensor]], rows: int) -> None:
    """Set a head to the ridge regression of one-hot labels on features. They are given in parts, each with its labels,
    and have this number of rows in all. The penalty is that of the smallest leave-one-out error. Scores would be near 0
    and 1, and their softmax near uniform: weights and bias are multiplied by the factor with which the leave-one-out
    scores have the lowest cross-entropy. So the softmax gives calibrated probabilities, and the losses of the next
    task, and the guidance, begin near their minimum. Of very many rows, evenly spaced ones are left out."""
    (classes, size), every, tried = head.weight.shape, math.ceil(rows / LEFT_OUT), []
    statistics = ClassStatistics(size).to(head.weight.device)
    statistics.grow(classes)
    for features, labels in parts:
        statistics.add(range(classes), class_sums(features.double(), labels, range(classes)))
        tried.append((features[::every], labels[::every]))
    features, labels = (torch.cat(part) for part in zip(*tried, strict=True))
    problem = ridge_problem(statistics)
    penalty, errors = min(
        zip(PENALTIES, problem.left_out_errors(features.double(), labels, PENALTIES), strict=True),
        key=lambda candidate: float(candidate[1].square().sum()),
    )
    weight, bias = problem.solution(penalty)
    temperature = fit_temperature(functional.one_hot(labels, classes) - errors, labels)
    head.assign(weight / temperature, bias / temperature)


def head_phase(
    head: LinearHead,
    generator: FeatureGenerator,
    task: Task,
    features: CachedFeatures,
    training: TrainOptions,
    replayed: Tensor,
    weights: tuple[float, float],
    stream: Stream,
    placement: Placement,
) -> Phase:
    """Train the head alone on cached features of the task's images and on generated ones of the `replayed` classes;
    `weights` are those of the two."""
    training = training.for_task(task.index)
    objective = HeadObjective(head, generator, task.num_seen, replayed, weights)
    batches = features.batches(training, stream, placement)
    return Phase("head", objective, batches, (ParameterGroup(list(head.parameters())),), training)
