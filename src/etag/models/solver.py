"""The solver: a backbone in stages, a head, and auxiliary classifiers while it is trained."""

from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from etag.core.outputs import Need, Outputs, Views
from etag.core.random import Stream
from etag.core.work import Batch
from etag.models.backbone import Backbone, ModelOptions, is_features, new_backbone, pooled
from etag.models.heads import HeadOptions, LinearHead
from etag.models.initial import build
from etag.models.modules import ConvNorm, Modules, uses_batch_statistics, without_tracking


class Auxiliary(nn.Module):
    """A classifier behind a stage: newly initialized stages like those that follow, pooling, and a linear head."""

    def __init__(self, branch: nn.Module, features: int) -> None:
        super().__init__()
        self.branch = branch
        self.head = LinearHead(features)

    def forward(self, maps: Tensor) -> Tensor:
        """Logits over all pairs of class and view."""
        logits: Tensor = self.head(pooled(self.branch(maps)))
        return logits


class Solver(nn.Module):
    """The network that is trained to classify."""

    def __init__(self, backbone: Backbone, head: LinearHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head
        self.auxiliaries: Modules[Auxiliary] = Modules()
        # whether BatchNorm of the backbone normalizes images and other views as one batch, or as two (`_separate`)
        self.views_in_statistics = False

    def add_auxiliaries(self, last: int, stream: Stream, short: bool = False) -> None:
        """Add an auxiliary classifier without outputs behind each stage that trains, up to stage `last` (1 .. L)."""
        for stage in range(self.backbone.frozen + 1, last + 1):
            branch = build(partial(self.backbone.branch, stage, short), stream.torch_generator("branch", stage))
            self.auxiliaries.append(Auxiliary(branch, self.backbone.feature_size))

    def parameters_to_train(self, auxiliaries: bool, old_rows: bool = True) -> list[nn.Parameter]:
        """Those of backbone and head (the rows of old classes only if `old_rows`), and of the auxiliaries if asked."""
        parts = [parameter for part in self.auxiliaries for parameter in part.parameters()] if auxiliaries else []
        head = list(self.head.parameters()) if old_rows else self.head.parameters_without_old_rows
        return [*self.backbone.parameters_to_train, *parts, *head]

    @property
    def compilable(self) -> tuple[nn.Module, ...]:
        """The parts whose structure does not change when classes are added."""
        stages = () if self.backbone.is_frozen else self.backbone.stages  # its features may be given in place of images
        return (*stages, *(auxiliary.branch for auxiliary in self.auxiliaries))

    def _auxiliaries_for(self, need: Need) -> list[Auxiliary]:
        return list(self.auxiliaries) if need & Need.AUXILIARY else []

    def forward(self, views: Tensor | Views, need: Need) -> Outputs:
        """The needed outputs of one pass over images, or over images and their views. The last stage, which is
        expensive, gets the other views only if a term needs their features or an auxiliary is behind it."""
        outputs, frozen, last = Outputs(), self.backbone.frozen, len(self.backbone.stages)
        auxiliaries = self._auxiliaries_for(need)
        if isinstance(views, Tensor):
            views = Views(views, views.shape[0])  # not len(): an exported program must accept any number of images
        views = self.enter(views)
        rows = _Rows(views, separate=self._separate(need))
        for number, stage in enumerate(list(self.backbone.stages)[views.after :], start=views.after + 1):
            if number == last and len(auxiliaries) < number - frozen:
                if not need & ~Need.AUXILIARY:  # only auxiliaries are needed, and all are done
                    return outputs
                if not need & Need.VIEW_FEATURES:
                    rows.drop_other_views()
            if need & Need.STAGES:
                rows.apply(stage[:-1])
                outputs.raw_stages.append(rows.images)
                rows.apply(stage[-1])
                outputs.stages.append(rows.images)
            else:
                rows.apply(stage)
            if number <= frozen + len(auxiliaries):
                outputs.auxiliary.append(auxiliaries[number - frozen - 1](rows.views))
        if need & Need.VIEW_FEATURES:
            outputs.view_features = self.backbone.pool(rows.views)
        feature = self.backbone.pool(rows.images)
        if need & Need.FEATURE:
            outputs.feature = feature
        if need & Need.LOGITS:
            outputs.logits = self.head(feature)
        return outputs

    @torch.no_grad()
    def enter(self, views: Views) -> Views:
        """The views after the frozen stages, which are the same for the solver and for its teacher."""
        inputs, after = views.inputs, self.backbone.frozen
        if is_features(inputs):
            return replace(views, after=len(self.backbone.stages))
        if views.after >= after:
            return views
        for stage in list(self.backbone.stages)[views.after : after]:
            inputs = stage(inputs)
        return replace(views, inputs=inputs, after=after)

    def _separate(self, need: Need) -> bool:
        """Whether the images and their other views pass the stages as two batches. (a) Yes while BatchNorm uses batch
        statistics, unless `views_in_statistics` is set or a term needs features of the other views. Each batch is then
        normalized by its own statistics, and only the images update the running ones: the views do not change the
        features that the head sees. (b) Always if stage maps are returned: LwM takes the gradient with respect to a
        map, which must be the very tensor that enters the next stage."""
        if need & Need.STAGES:
            return True
        batch_statistics = uses_batch_statistics(self.backbone)
        return not self.views_in_statistics and not need & Need.VIEW_FEATURES and batch_statistics

    def logits_from_stage(self, maps: Tensor, stage: int) -> Tensor:
        """Logits from the map after stage `stage` (1 .. L), after its activation."""
        for later in list(self.backbone.stages)[stage:]:
            maps = later(maps)
        logits: Tensor = self.head(self.backbone.pool(maps))
        return logits


class _Rows:
    """Images and their other views on their way through the stages, in one tensor or in two."""

    def __init__(self, views: Views, separate: bool) -> None:
        self._image_count, self._selected = views.image_count, views.selected
        self._tensors = [views.inputs]
        if separate and views.inputs.shape[0] > views.image_count:
            self._tensors = [views.inputs[: views.image_count], views.inputs[views.image_count :]]

    def apply(self, layers: nn.Module) -> None:
        """Pass all rows through the layers; separate views do not change BatchNorm's running statistics."""
        first, *others = self._tensors
        self._tensors = [layers(first)]
        for other in others:
            with without_tracking(layers) if uses_batch_statistics(layers) else nullcontext():
                self._tensors.append(layers(other))

    def drop_other_views(self) -> None:
        """Continue with the images only."""
        self._tensors = [self.images]

    @property
    def images(self) -> Tensor:
        """The rows of the images; if they pass separately, the same tensor that enters the next stage."""
        first = self._tensors[0]
        if first.shape[0] == self._image_count:
            return first
        return _rows_of(first, lambda rows: rows[: self._image_count])

    @property
    def views(self) -> Tensor:
        """The rows that the auxiliaries see: images and other views, or those selected."""
        rows = self._tensors[0] if len(self._tensors) == 1 else torch.cat(self._tensors)
        selected = self._selected
        return rows if selected is None else _rows_of(rows, lambda rows: rows.index_select(0, selected))


def _rows_of(rows: Tensor, choose: Callable[[Tensor], Tensor]) -> Tensor:
    """The rows that a function chooses. Maps are passed to it in the order that they have in memory, channels last: so
    rows are copied as whole blocks, and gradients are in that order, too."""
    return choose(rows) if rows.ndim != 4 else choose(rows.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


N = TypeVar("N", bound=nn.Module)


class Frozen(nn.Module, Generic[N]):
    """A frozen copy of a network as it was when the task began. It stays in evaluation mode."""

    def __init__(self, network: N) -> None:
        super().__init__()
        self.network: N = deepcopy(network).eval().requires_grad_(False)
        for part in self.network.modules():
            if isinstance(part, ConvNorm):
                part.fold_once()

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        """Do nothing: a frozen network stays in evaluation mode."""
        return self


class Teacher(Frozen[Solver]):
    """The solver of the previous task."""

    @torch.no_grad()
    def targets(self, views: Tensor | Views, need: Need) -> Outputs:
        """Its outputs as constants: under no_grad, not inference_mode, whose tensors cannot enter a loss."""
        outputs: Outputs = self.network(views, need)
        return outputs


class FeatureCollector(nn.Module):
    """Collects the feature and the label of each image in a data pass."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """`features` and `labels`, one row per image."""
        return {"features": self.backbone(batch.inputs), "labels": batch.labels}


def build_solver(model: ModelOptions, head: HeadOptions, channels: int, size: int, stream: Stream) -> Solver:
    """A randomly initialized solver with an empty head, for images of `size` pixels per side."""
    backbone = build(lambda: new_backbone(model, channels, size, head.signed), stream.torch_generator("backbone"))
    return Solver(backbone, head.new_head(backbone.feature_size))
