"""The interface of every backbone, and how one is chosen and built."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

from pydantic import Field, PositiveInt
from torch import Tensor, nn

from etag.core.errors import EtagError
from etag.core.options import Options
from etag.core.registry import Registry
from etag.models.modules import Modules


class ModelOptions(Options):
    """The solver's backbone."""

    backbone: str = Field("resnet18", description="name of the backbone")
    width: PositiveInt | None = Field(
        None, description="channels of the first layer; the others scale with it; null: standard"
    )
    stem: Literal["auto", "cifar", "imagenet"] = Field(
        "auto", description="first layers: cifar keeps the side of small images; auto: imagenet above 64 pixels"
    )
    weights: str | None = Field(
        None,
        description="file of backbone weights: safetensors or a PyTorch state dict; for ResNets also torchvision's",
    )

    def imagenet_stem(self, size: int) -> bool:
        """Whether images of `size` pixels per side get the stem for large images."""
        return self.stem == "imagenet" or (self.stem == "auto" and size > 64)


class Backbone(nn.Module, ABC):
    """A feature extractor in L stages; `stages[0]` begins with the stem. A stage's last layer is its activation and
    nothing else, so that the map before it can be read too. Features are not negative (the generators of features end
    in a ReLU), unless `signed` is set: then there is no last activation."""

    stages: Modules[nn.Sequential]
    feature_size: int
    min_side: int  # of images: the factor by which all stages together reduce the side
    imagenet = False  # whether it has the stem for large images
    has_maps = True  # whether stages end in maps, or in plain features
    signed = False  # whether features may be negative

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
        """The pooled features of images, one row per image."""
        for stage in self.stages:
            images = stage(images)
        return self.pool(images)

    @staticmethod
    def pool(maps: Tensor) -> Tensor:
        """Global average pooling of maps; plain features are returned as they are."""
        return maps.mean((2, 3)) if maps.ndim == 4 else maps

    def translate_name(self, name: str) -> str:
        """Our name of a tensor in another library's weights; an unknown name is returned unchanged."""
        return name


BACKBONES: Registry[Callable[[ModelOptions, int, int], Backbone]] = Registry("backbone", "etag.models.backbones")


def new_backbone(options: ModelOptions, channels: int, size: int, signed: bool = False) -> Backbone:
    """A backbone for square images of `size` pixels per side; its weights are whatever its constructor leaves."""
    backbone = BACKBONES[options.backbone](options, channels, size)
    if size < backbone.min_side:
        stem = "model.stem=cifar or " if backbone.imagenet else ""
        raise EtagError(
            f"images of {size}x{size} pixels are too small for the backbone {options.backbone}, which needs "
            f"{backbone.min_side}x{backbone.min_side}: set {stem}data.size={backbone.min_side}, or choose another "
            "model.backbone."
        )
    if signed:
        backbone.signed = True
        *_, last = backbone.stages
        last[-1] = nn.Identity()
    return backbone
