"""The solver: a staged backbone with a head, and auxiliary classifiers while it is trained."""

from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from typing import Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from etag.core.errors import EtagError
from etag.core.outputs import Need, Outputs, Views, require
from etag.core.random import Stream
from etag.core.work import Batch
from etag.models.backbone import BACKBONES, Backbone, ModelOptions
from etag.models.heads import LinearHead
from etag.models.initial import build
from etag.models.modules import Modules, uses_batch_statistics, without_tracking


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

    def __init__(self, backbone: Backbone, head: LinearHead, signed: bool = False) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head
        self.signed = signed  # features without the last activation: cosines make use of both signs
        self.auxiliaries: Modules[Auxiliary] = Modules()
        # whether the backbone's BatchNorm follows the auxiliaries' views too, or the images themselves only
        self.views_in_statistics = False

    def add_auxiliaries(self, count: int, stream: Stream, short: bool = False) -> None:
        """An auxiliary classifier, still without outputs, behind each of the first `count` stages."""
        for stage in range(1, count + 1):
            branch = build(partial(self.backbone.branch, stage, short), stream.generator("branch", stage))
            self.auxiliaries.append(Auxiliary(branch, self.backbone.feature_size))

    def used_for(self, need: Need, old_classes: bool = True) -> list[nn.Parameter]:
        """The parameters that what is needed is computed from; the head's of old classes only if they shall learn."""
        parts = [self.backbone, *self._auxiliaries_for(need)]
        head = list(self.head.parameters()) if old_classes else self.head.trained_with_new
        return [*(parameter for part in parts for parameter in part.parameters()), *head]

    @property
    def static(self) -> tuple[nn.Module, ...]:
        """The parts that no new class changes."""
        return (*self.backbone.stages, *(auxiliary.branch for auxiliary in self.auxiliaries))

    def _auxiliaries_for(self, need: Need) -> list[Auxiliary]:
        return list(self.auxiliaries) if need & Need.AUXILIARY else []

    def forward(self, shown: Tensor | Views, need: Need) -> Outputs:
        """What is needed of one pass over images, or over what is shown of them.

        The last stage sees the views only where a term asks for them there: it is the most expensive thing that
        embedding distillation does not need.
        """
        outputs = Outputs()
        auxiliaries = self._auxiliaries_for(need)
        if isinstance(shown, Tensor):
            shown = Views(shown, shown.shape[0])  # not len(): an exported program shall take any number
        rows = _Rows(shown, apart=self._apart(need))
        last = len(self.backbone.stages)
        for number, stage in enumerate(self.backbone.stages, start=1):
            if number == last and len(auxiliaries) < number:
                if not need & ~Need.AUXILIARY:
                    return outputs
                if not need & Need.VIEW_FEATURES:
                    rows.keep_images()
            signed = self.signed and number == last
            if need & Need.STAGES or signed:
                rows.through(stage[:-1])
                if need & Need.STAGES:
                    outputs.raw_stages.append(rows.images)
                if not signed:
                    rows.through(stage[-1])
            else:
                rows.through(stage)
            if need & Need.STAGES:
                outputs.stages.append(rows.images)
            if number <= len(auxiliaries):
                outputs.auxiliary.append(auxiliaries[number - 1](rows.views))
        if need & Need.VIEW_FEATURES:
            outputs.view_features = self.backbone.pool(rows.views)
        feature = self.backbone.pool(rows.images)
        if need & Need.FEATURE:
            outputs.feature = feature
        if need & Need.LOGITS:
            outputs.logits = self.head(feature)
        return outputs

    def _apart(self, need: Need) -> bool:
        """Whether the images pass apart from their other views.

        They must where BatchNorm is trained and the views are only there for the auxiliaries: what these need shall
        not change what the head learns from. And they do where maps are asked for, so that the rest is computed from
        those very maps.
        """
        if need & Need.STAGES:
            return True
        return not self.views_in_statistics and not need & Need.VIEW_FEATURES and uses_batch_statistics(self.backbone)

    def classify(self, maps: Tensor, stage: int) -> Tensor:
        """Logits from the map of a stage (1 .. L), after its activation."""
        last = len(self.backbone.stages)
        for number, later in list(enumerate(self.backbone.stages, start=1))[stage:]:
            maps = later[:-1](maps) if self.signed and number == last else later(maps)
        logits: Tensor = self.head(self.backbone.pool(maps))
        return logits


class _Rows:
    """Images and their other views on their way through the stages, in one tensor or apart."""

    def __init__(self, shown: Views, apart: bool) -> None:
        self._images, self._picked = shown.images, shown.picked
        self._groups = [shown.rows]
        if apart and shown.rows.shape[0] > shown.images:
            self._groups = [shown.rows[: shown.images], shown.rows[shown.images :]]

    def through(self, layers: nn.Module) -> None:
        """All of them pass; the statistics of other views are not taken note of where they are apart."""
        first, *others = self._groups
        self._groups = [layers(first)]
        for other in others:
            with without_tracking(layers) if uses_batch_statistics(layers) else nullcontext():
                self._groups.append(layers(other))

    def keep_images(self) -> None:
        """Leave the other views behind."""
        self._groups = [self.images]

    @property
    def images(self) -> Tensor:
        """The rows of the images themselves: where they are apart, the very tensor that goes on."""
        first = self._groups[0]
        return first if first.shape[0] == self._images else first[: self._images]

    @property
    def views(self) -> Tensor:
        """The rows of the views that are looked at."""
        rows = self._groups[0] if len(self._groups) == 1 else torch.cat(self._groups)
        return rows if self._picked is None else _taken(rows, self._picked)


def _taken(maps: Tensor, rows: Tensor) -> Tensor:
    """Some rows. Those of maps in channels_last order are whole blocks of memory only to those who see them so."""
    if maps.ndim != 4:
        return maps.index_select(0, rows)
    return maps.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)


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
    def targets(self, shown: Tensor | Views, need: Need) -> Outputs:
        """What it says, as constants. Not inference mode: its tensors could not enter a loss."""
        return self.differentiable(shown, need)

    def differentiable(self, shown: Tensor | Views, need: Need) -> Outputs:
        """What it says, with a path for gradients back to the images."""
        outputs: Outputs = self.network(shown, need)
        return outputs


class Features(nn.Module):
    """What a sweep over features computes: the label and the feature of every image."""

    def __init__(self, solver: Solver) -> None:
        super().__init__()
        self.solver = solver

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """One row an image."""
        return {"features": require(self.solver(batch.inputs, Need.FEATURE).feature), "labels": batch.labels}


def build_solver(
    options: ModelOptions,
    channels: int,
    size: int,
    stream: Stream,
    head: Callable[[int], LinearHead] | None = None,
    signed: bool = False,
) -> Solver:
    """A solver with an empty head, linear if no other is given, for images of so many channels and pixels a side."""

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
    make_head = head or (lambda features: LinearHead(features, options.head_bias))
    return Solver(backbone, make_head(backbone.feature_size), signed)
