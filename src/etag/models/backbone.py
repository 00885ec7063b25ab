"""What every backbone offers, and how one is chosen."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from etag.core.options import Options
from etag.core.registry import Registry
from etag.models.modules import Modules


class ModelOptions(Options):
    """The solver's network."""

    backbone: str = "resnet18"
    width: PositiveInt | None = Field(
        None, description="channels of the first layer; the others follow in proportion. None is the classic network"
    )
    stem: Literal["auto", "cifar", "imagenet"] = Field(
        "auto",
        description="first layers of ResNets and MobileNetV2: cifar keeps the side of small images, imagenet soon "
        "reduces it; auto takes the latter above 64 pixels",
    )
    head_bias: bool = Field(True, description="bias in the linear head; the paper shows none but counts it")
    head_scale: PositiveFloat = Field(1.0, description="what the learned scale of cosine and proxy heads begins with")
    weights: str | None = Field(
        None,
        description="file the backbone begins with: safetensors or a PyTorch state dict, with our names or, for "
        "ResNets, torchvision's",
    )

    def imagenet_stem(self, size: int) -> bool:
        """Whether images of so many pixels a side get the stem for large ones."""
        return self.stem == "imagenet" or (self.stem == "auto" and size > 64)


class Backbone(nn.Module, ABC):
    """A feature extractor in L stages; `stages[0]` begins with the stem.

    A stage's last layer is its activation and nothing else, so that its map can be had before it. Features are not
    negative (the generator that makes them again ends in a ReLU), unless a solver leaves the last activation out.
    """

    stages: Modules[nn.Sequential]
    feature_size: int
    smallest: int  # side of the smallest image: so much is the side reduced from the image to the last map
    imagenet = False  # whether it has the stem for large images
    has_maps = True  # whether stages end in maps, or in plain features

    @abstractmethod
    def new_stage(self, number: int) -> nn.Sequential:
        """Stage `number` (2 .. L) once more; L + 1 is one of the last's kind behind the last, at the same side."""

    def short_stage(self, number: int) -> nn.Sequential:
        """A stage of the same shapes with fewer layers; where a backbone knows none, the stage."""
        return self.new_stage(number)

    def branch(self, stage: int, short: bool = False) -> nn.Module:
        """New stages that lead from the map after `stage` (1 .. L) to a map that can be pooled.

        They repeat the architecture of the stages that follow, or a short form of it; after the last there is one
        more of its kind.
        """
        last, new = max(len(self.stages), stage + 1), self.short_stage if short else self.new_stage
        return nn.Sequential(*(new(number) for number in range(stage + 1, last + 1)))

    @staticmethod
    def pool(maps: Tensor) -> Tensor:
        """Global average: the feature of a map. What is no map is a feature already."""
        return maps.mean((2, 3)) if maps.ndim == 4 else maps

    def translate_name(self, name: str) -> str:
        """What a tensor in another library's weights is called here; an unknown name stays."""
        return name


BACKBONES: Registry[Callable[[ModelOptions, int, int], Backbone]] = Registry("backbone", "etag.models.backbones")
