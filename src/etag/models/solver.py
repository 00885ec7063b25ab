"""The solver: a staged backbone with a head, and auxiliary classifiers while it is trained."""

from copy import deepcopy
from typing import Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from etag.core.errors import EtagError
from etag.core.outputs import Need, Outputs, needed
from etag.core.random import Stream
from etag.models.backbone import BACKBONES, Backbone, ModelOptions
from etag.models.heads import LinearHead
from etag.models.initial import build
from etag.models.modules import Modules


class Auxiliary(nn.Module):
    """A classifier behind a stage: the remaining stages re-created, pooling, a growing linear layer."""

    def __init__(self, branch: nn.Module, features: int) -> None:
        super().__init__()
        self.branch = branch
        self.head = LinearHead(features)

    def forward(self, maps: Tensor) -> Tensor:
        """Logits over the augmented classes."""
        logits: Tensor = self.head(Backbone.pool(self.branch(maps)))
        return logits


class Solver(nn.Module):
    """What is trained to classify."""

    def __init__(self, backbone: Backbone, head: LinearHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head
        self.auxiliaries: Modules[Auxiliary] = Modules()

    def add_auxiliaries(self, count: int, stream: Stream) -> None:
        """An auxiliary classifier, still without outputs, behind each of the first `count` stages."""
        for stage in range(1, count + 1):
            branch = build(lambda stage=stage: self.backbone.branch(stage), stream.generator("branch", stage))  # type: ignore[misc]
            self.auxiliaries.append(Auxiliary(branch, self.backbone.feature_size))

    def used_for(self, need: Need) -> list[nn.Parameter]:
        """The parameters that what is needed is computed from."""
        parts = [self.backbone, self.head, *self._auxiliaries_for(need)]
        return [parameter for part in parts for parameter in part.parameters()]

    def _auxiliaries_for(self, need: Need) -> list[Auxiliary]:
        return list(self.auxiliaries) if need & Need.AUXILIARY else []

    def forward(self, images: Tensor, need: Need, views: int = 1) -> Outputs:
        """What is needed of one pass. `images` holds all views, image by image.

        The last stage sees the views only where a term asks for them there: it is the most expensive thing that
        embedding distillation does not need.
        """
        outputs = Outputs()
        auxiliaries = self._auxiliaries_for(need)
        stages = self.backbone.stages
        x = images
        for number, stage in enumerate(stages, start=1):
            if number == len(stages):
                if not need & ~Need.AUXILIARY and len(auxiliaries) < number:
                    return outputs
                if not need & Need.VIEW_FEATURES and len(auxiliaries) < number:
                    x, views = x[::views], 1
            x = stage(x)
            if need & Need.STAGES:
                outputs.stages.append(x[::views])
            if number <= len(auxiliaries):
                outputs.auxiliary.append(auxiliaries[number - 1](x))
        features = self.backbone.pool(x)
        if need & Need.VIEW_FEATURES:
            outputs.view_features = features
        if need & Need.FEATURE:
            outputs.feature = features[::views]
        if need & Need.LOGITS:
            outputs.logits = self.head(features[::views])
        return outputs


N = TypeVar("N", bound=nn.Module)


class Frozen(nn.Module, Generic[N]):
    """A frozen copy of a network as it was when the task began. It stays in evaluation mode."""

    def __init__(self, network: N) -> None:
        super().__init__()
        self.network: N = deepcopy(network).eval().requires_grad_(False)

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        """What is frozen does not train."""
        return self


class Teacher(Frozen[Solver]):
    """The solver of the previous task, with two paths."""

    @torch.no_grad()
    def targets(self, images: Tensor, need: Need, views: int = 1) -> Outputs:
        """What it says, as constants. Not inference mode: its tensors could not enter a loss."""
        return self.differentiable(images, need, views)

    def differentiable(self, images: Tensor, need: Need, views: int = 1) -> Outputs:
        """What it says, with a path for gradients back to the images."""
        outputs: Outputs = self.network(images, need, views)
        return outputs


class LinearPredictor(nn.Module):
    """Softmax over the first `classes` outputs of the head."""

    need = Need.LOGITS

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, outputs: Outputs) -> Tensor:
        """Probabilities, one row an image."""
        return needed(outputs.logits)[:, : self.classes].softmax(1)


def build_solver(options: ModelOptions, channels: int, size: int, stream: Stream) -> Solver:
    """A solver with an empty head, for images of this many channels and pixels a side."""

    def make() -> Backbone:
        backbone = BACKBONES[options.backbone](options, channels, size)
        if size < backbone.smallest:
            stem = "model.stem=cifar or " if backbone.imagenet else ""
            raise EtagError(
                f"images of {size}x{size} pixels are too small for the backbone {options.backbone}, which needs "
                f"{backbone.smallest}x{backbone.smallest}: set {stem}data.size={backbone.smallest}, or another "
                "model.backbone."
            )
        return backbone

    backbone = build(make, stream.generator("backbone"))
    return Solver(backbone, LinearHead(backbone.feature_size, options.head_bias))
