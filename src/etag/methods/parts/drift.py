"""Learned drift compensation (LDC, Gomez-Villa et al., 2024): a map from the features of the previous backbone to those
of the current one, with which stored class means (and covariances) follow a backbone that moves.

The map is learned after each task on the task's images, of which both backbones give features. It exists only until
it has been applied: nothing of it is saved with a model.
"""

from collections.abc import Callable
from typing import Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from etag.core.options import Options, Schedule, TrainOptions
from etag.core.outputs import require
from etag.core.random import Placement, Stream
from etag.core.scenario import ImageSet, Task
from etag.core.work import Batch, Batches, DataPass, ParameterGroup, Phase, Plan, Terms
from etag.losses.drift import map_error
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.statistics import Transform, solve
from etag.models.backbone import Backbone
from etag.models.initial import build
from etag.models.solver import Solver, Teacher

PassBatches = Callable[[str, ImageSet, bool], Batches]  # (name, images, augment): `Method.pass_batches`


class DriftTrainOptions(TrainOptions):
    """Training of the map. The authors' release trains with Adam, learning rate 1e-3, for 20 epochs in batches of 128:
    800 steps on a task of 5,000 images, as CIFAR-100 has. The map starts at random weights, so smaller tasks need as
    many steps."""

    steps: PositiveInt | None = Field(800, description="number of optimizer steps; null: `epochs` counts")
    drop_last: bool = Field(False, description="skip the last batch of an epoch if it is smaller than the others")
    weight_decay: NonNegativeFloat = Field(0.0, description="L2 penalty, added to the gradient")
    schedule: Schedule = Field("constant", description="learning rate")
    validation: Literal[0] = Field(0, description="not available: the map is trained on all features")


class DriftOptions(Options):
    """How stored class means follow the backbone."""

    map: Literal["linear", "least_squares", "mlp"] = Field(
        "linear",
        description="the map from old to new features. linear: a matrix, trained from random weights (LDC's release); "
        "least_squares: the matrix with the smallest error, computed and not trained; mlp: a network with one hidden "
        "layer, trained",
    )
    hidden: PositiveInt = Field(512, description="width of the hidden layer; map=mlp")
    passes: NonNegativeInt = Field(
        10,
        description="augmented passes over the images whose features are cached; each epoch of training uses one, in "
        "turn, and map=least_squares all; 0: one pass without augmentation",
    )
    ridge: PositiveFloat = Field(
        1e-2,
        description="penalty on the difference between the matrix and the identity, as a share of the mean square of "
        "the features: directions that the new images do not have stay as they are; map=least_squares",
    )
    train: DriftTrainOptions = Field(DriftTrainOptions(), description="training of the map")


class PairCollector(nn.Module):
    """In a data pass, collects features of two backbones for each image: `features` has the old one's, then the new
    one's, side by side, both transformed."""

    def __init__(self, old: Backbone, new: Backbone, transform: Transform = torch.Tensor.float) -> None:
        super().__init__()
        self.old, self.new, self._transform = old, new, transform

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """`features` (rows, 2 x feature) and `labels`."""
        pair = [self._transform(backbone(batch.inputs).float()) for backbone in (self.old, self.new)]
        return {"features": torch.cat(pair, dim=1), "labels": batch.labels}


class MapObjective(nn.Module):
    """The error of the map on pairs of old and new features."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.map = network

    def forward(self, batch: Batch) -> Terms:
        """Its mean squared error."""
        old, new = batch.inputs.chunk(2, dim=1)
        return {"drift": map_error(self.map(old), new)}


class Drift(nn.Module):
    """The map from old to new features. `map` is None, which stands for the identity, except while it is learned and
    applied: call `learn`, then map what is stored, then `reset`."""

    map: nn.Module | None

    def __init__(self, options: DriftOptions, size: int, placement: Placement) -> None:
        super().__init__()
        self.options, self._size, self._placement = options, size, placement
        self.map = None

    def learn(
        self,
        task: Task,
        teacher: Teacher | None,
        solver: Solver,
        batches: PassBatches,
        stream: Stream,
        transform: Transform = torch.Tensor.float,
    ) -> Plan:
        """Learn the map from the teacher's features of the task's images to the solver's, both transformed as what is
        stored of them. Nothing is done at the base task, when there is no teacher, and if the backbone is frozen:
        features do not move then."""
        if teacher is None or solver.backbone.is_frozen:
            return
        o = self.options
        module = PairCollector(teacher.network.backbone, solver.backbone, transform)
        images = batches("drift", task.train, o.passes > 0)
        pairs = CachedFeatures.from_pass(
            (yield DataPass("drift features", module, images, epochs=max(1, o.passes))), len(task.train)
        )
        # from here on checkpoints save it: a resumed plan creates it again before its weights are loaded
        self.map = build(self._new_map, stream.torch_generator("map")).to(self._placement.device)
        if o.map == "least_squares":
            old, new = pairs.all_features.chunk(2, dim=1)
            with torch.no_grad():
                self.matrix.copy_(least_squares_map(old, new, o.ridge))
            return
        training = o.train.for_task(task.index)
        group = ParameterGroup(list(self.map.parameters()))
        cached = pairs.batches(training, stream, self._placement)
        yield Phase("drift", MapObjective(self.map), cached, (group,), training)

    def _new_map(self) -> nn.Module:
        if self.options.map != "mlp":
            return nn.Linear(self._size, self._size, bias=False)
        hidden = self.options.hidden
        return nn.Sequential(nn.Linear(self._size, hidden), nn.ReLU(), nn.Linear(hidden, self._size))

    @property
    def matrix(self) -> Tensor:
        """The matrix M of a linear map, f_new = M f_old."""
        assert isinstance(self.map, nn.Linear)
        return self.map.weight

    @torch.no_grad()
    def forward(self, features: Tensor) -> Tensor:
        """Old features, or class means of them, as the current backbone would give them."""
        return features if self.map is None else require(self.map)(features)

    @torch.no_grad()
    def map_factors(self, factors: Tensor) -> Tensor:
        """Factors F of covariances F F' as the map changes them: the covariance of M f is M F F' M'."""
        return factors if self.map is None else self.matrix @ factors

    def reset(self) -> None:
        """Back to the identity; the map is dropped."""
        self.map = None


def least_squares_map(old: Tensor, new: Tensor, ridge: float) -> Tensor:
    """The matrix M with the smallest sum of |M f_old - f_new|^2 over rows, plus a penalty on M - I. The penalty is
    `ridge` times the mean square of the old features, times |M - I|^2 for each row: along directions that the features
    do not have, M is the identity."""
    x, move = old.double(), (new - old).double()
    gram = x.T @ x
    penalty = ridge * gram.diagonal().mean().clamp(min=1e-12)
    identity = torch.eye(len(gram)).to(gram)
    return (identity + solve(gram + penalty * identity, x.T @ move).T).to(old)
