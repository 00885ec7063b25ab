"""What every backbone offers, and how one is chosen."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

from pydantic import Field, PositiveInt
from torch import Tensor, nn

from etag.core.options import Options
from etag.core.registry import Registry


class ModelOptions(Options):
    """The solver's network."""

    backbone: str = "resnet18"
    width: PositiveInt = Field(64, description="channels of the first stage; the others follow in proportion")
    stem: Literal["auto", "cifar", "imagenet"] = Field(
        "auto", description="first layer: 3x3, or 7x7 with pooling; auto takes the latter above 64 pixels"
    )
    head_bias: bool = Field(True, description="bias in the linear head; the paper shows none but counts it")


class Backbone(nn.Module, ABC):
    """A feature extractor in L stages; `stages[0]` begins with the stem."""

    stages: nn.ModuleList
    feature_size: int

    @abstractmethod
    def branch(self, stage: int) -> nn.Module:
        """New stages that lead from the map after `stage` (1 .. L) to a map that can be pooled.

        They repeat the architecture of the stages that follow; after the last there is one more of its kind.
        """

    @staticmethod
    def pool(maps: Tensor) -> Tensor:
        """Global average: the feature of a map."""
        return maps.mean((2, 3))


BACKBONES: Registry[Callable[[ModelOptions, int, int], Backbone]] = Registry("backbone", "etag.models.backbones")
