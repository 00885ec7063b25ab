"""The interface of every backbone, and how one is chosen and built."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any, Literal, Self

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from etag.core.errors import EtagError
from etag.core.images import ImageFormat
from etag.core.options import Options
from etag.core.registry import Registry
from etag.models.convolution import with_channels_last_gradient
from etag.models.modules import Modules

DEFAULT_BACKBONE = "resnet18"


class ModelOptions(Options):
    """The solver's backbone."""

    backbone: str = Field(
        "auto", description=f"name of the backbone; auto: that of the weights, else {DEFAULT_BACKBONE}"
    )
    width: PositiveInt | None = Field(
        None, description="channels of the first layer; the others scale with it; null: standard"
    )
    stem: Literal["auto", "cifar", "imagenet"] = Field(
        "auto", description="first layers: cifar keeps the side of small images; auto: imagenet above 64 pixels"
    )
    weights: str | None = Field(
        None,
        description="initial weights: a name from `etag backbones`, a file (safetensors, or a PyTorch state dict), a "
        "model directory, a directory of Hugging Face transformers, hf:OWNER/NAME@REVISION, or timm:NAME",
    )
    train: str = Field(
        "all",
        pattern=r"^(all|head|last-[1-9]\d?)$",
        description="what is trained: all, the last N stages of the backbone and the head (last-N), or the head alone",
    )
    sha256: str | None = Field(None, description="checksum of the weights; filled in, and checked if it is given")
    images: ImageFormat | None = Field(None, description="the images that the weights expect; filled in")
    architecture: dict[str, Any] | None = Field(
        None, description="configuration of a backbone of transformers or timm; filled in"
    )

    @property
    def network(self) -> str:
        """What the network is called: the name of the backbone or, if another library builds it, its name there."""
        known = self.architecture or {}
        return str(known.get("model_type") or known.get("name") or self.backbone)

    def imagenet_stem(self, size: int) -> bool:
        """Whether images of `size` pixels per side get the stem for large images."""
        return self.stem == "imagenet" or (self.stem == "auto" and size > 64)


class Backbone(nn.Module, ABC):
    """A feature extractor in L stages; `stages[0]` begins with the stem. A stage's last layer is its activation and
    nothing else (or an identity), so that the map before it can be read too. The first stages may be frozen: they do
    not train, and stay in evaluation mode."""

    stages: Modules[nn.Sequential]
    feature_size: int
    min_side: int  # of images: the factor by which all stages together reduce the side
    imagenet = False  # whether it has the stem for large images
    has_maps = True  # whether stages end in maps, or in plain features or tokens
    signed = False  # whether features may be negative; if not, the generators of features end in a ReLU
    frozen = 0  # how many of the first stages do not train

    def __init__(self) -> None:
        super().__init__()
        # copies of the stages that train, as they were first, for a second set of features
        self.original: Modules[nn.Sequential] | None = None
        # branches behind the first stages that train, for one more set of features each
        self.branches: Modules[nn.Module] = Modules()
        self.short_branches = False

    @abstractmethod
    def new_stage(self, number: int, short: bool = False) -> nn.Sequential:
        """A new copy of the architecture of stage `number` (2 .. L); L + 1: one more stage with the width and side of
        the last. `short` asks for a stage of the same shapes with fewer layers, where the backbone has one."""

    def branch(self, stage: int, short: bool = False) -> nn.Module:
        """New stages that lead from the map after `stage` (1 .. L) to a map that can be pooled. They repeat the
        architecture of the stages that follow, or a short form of it; behind the last stage there is one more of its
        kind."""
        last = max(len(self.stages), stage + 1)
        return nn.Sequential(*(self.new_stage(number, short) for number in range(stage + 1, last + 1)))

    def forward(self, images: Tensor) -> Tensor:
        """The pooled features of images, one row per image; features are returned as they are."""
        return images if is_features(images) else self.features_of(self.last_maps(images))

    def last_maps(self, images: Tensor) -> list[Tensor]:
        """What is pooled: the last stage's output, and those of the branches and of the original stages."""
        stages, maps = list(self.stages), []
        for stage in stages[: self.frozen]:
            images = stage(images)
        last = images
        for number, stage in enumerate(stages[self.frozen :]):
            last = stage(last)
            if number < len(self.branches):
                maps.append(self.branches[number](last))
        return [last, *maps, *([] if self.original is None else [_through(images, self._original_stages[0])])]

    def features_of(self, maps: Sequence[Tensor]) -> Tensor:
        """The features that are pooled from what `last_maps` returned, side by side."""
        last, *others = maps
        features = [self.pool(last), *map(pooled, others[: len(self.branches)])]
        if self.original is not None:
            features.append(self.pool(_through(others[-1], self._original_stages[1])))
        return torch.cat(features, dim=1) if len(features) > 1 else features[0]

    @property
    def _original_stages(self) -> tuple[list[nn.Sequential], list[nn.Sequential]]:
        """The copies of stages, and of what follows them."""
        copies, stages = list(self.original or ()), len(self.stages) - self.frozen
        return copies[:stages], copies[stages:]

    @property
    def output_size(self) -> int:
        """The size of what `forward` returns: one set of features, or more."""
        return self.feature_size * (1 + len(self.branches) + (self.original is not None))

    def add_branches(self, branches: Iterable[nn.Module], short: bool) -> None:
        """From now on return more sets of features, of these branches (see `branch`) behind the first stages that
        train."""
        self.branches, self.short_branches = Modules(branches), short

    def add_original(self) -> None:
        """From now on return a second set of features: of copies of the stages that train (see `copy_original`)."""
        self.original = Modules(deepcopy(stage) for stage in self._stages_to_copy)

    def copy_original(self) -> None:
        """Take over the weights that the stages have now."""
        for copy, stage in zip(self.original or (), self._stages_to_copy, strict=True):
            copy.load_state_dict(stage.state_dict())

    @property
    def _stages_to_copy(self) -> list[nn.Sequential]:
        """The stages that train."""
        return list(self.stages)[self.frozen :]

    def pool(self, maps: Tensor) -> Tensor:
        """The features of the last stage's output."""
        return pooled(maps)

    def freeze(self, train: str) -> None:
        """Freeze the stages that do not train (`ModelOptions.train`)."""
        stages = len(self.stages)
        trained = stages if train == "all" else 0 if train == "head" else int(train.removeprefix("last-"))
        if trained > stages:
            raise EtagError(f"model.train={train} is too much: the backbone has {stages} stages. Choose all.")
        self.frozen = stages - trained

    @property
    def is_frozen(self) -> bool:
        """Whether no stage trains."""
        return self.frozen == len(self.stages)

    @property
    def parameters_to_train(self) -> list[nn.Parameter]:
        """The parameters of the stages that train."""
        frozen = {id(parameter) for stage in self._frozen_stages for parameter in stage.parameters()}
        return [] if self.is_frozen else [each for each in self.parameters() if id(each) not in frozen]

    @property
    def _frozen_stages(self) -> list[nn.Module]:
        return [*list(self.stages)[: self.frozen], *self.branches, *(self.original or ())]

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the stages that train; frozen ones stay in evaluation mode."""
        super().train(mode and not self.is_frozen)
        for stage in self._frozen_stages:
            stage.eval()
        return self

    def translate_name(self, name: str) -> str:
        """Our name of a tensor in another library's weights; an unknown name is returned unchanged."""
        return name


def _through(maps: Tensor, stages: Iterable[nn.Module]) -> Tensor:
    for stage in stages:
        maps = stage(maps)
    return maps


def pooled(maps: Tensor) -> Tensor:
    """The mean over the places of a map, or over tokens; plain features are returned as they are."""
    if maps.ndim == 4:
        return with_channels_last_gradient(maps).mean((2, 3))
    return maps.mean(1) if maps.ndim == 3 else maps


def is_features(inputs: Tensor) -> bool:
    """Whether inputs are features, which a frozen backbone computed before, and not images."""
    return inputs.ndim == 2


BACKBONES: Registry[Callable[[ModelOptions, int, int], Backbone]] = Registry("backbone", "etag.models.backbones")


def new_backbone(options: ModelOptions, channels: int, size: int, signed: bool = False) -> Backbone:
    """A backbone for square images of `size` pixels per side; its weights are those that its constructor draws."""
    name = DEFAULT_BACKBONE if options.backbone == "auto" else options.backbone
    backbone = BACKBONES[name](options, channels, size)
    if size < backbone.min_side:
        stem = "model.stem=cifar or " if backbone.imagenet and options.weights is None else ""
        raise EtagError(
            f"images of {size}x{size} pixels are too small for the backbone {name}, which needs "
            f"{backbone.min_side}x{backbone.min_side}: set {stem}data.size={backbone.min_side}, or choose another "
            "model.backbone."
        )
    if signed and not backbone.signed:
        backbone.signed = True
        *_, last = backbone.stages
        last[-1] = nn.Identity()
    backbone.freeze(options.train)
    return backbone
