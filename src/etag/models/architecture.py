"""Configurations of Hugging Face transformers (config.json), checked. Only the values listed here are used: nothing in
them can name code.

Dropout and stochastic depth are left out. They change no weights, and their random numbers would come from PyTorch's
global generator, so that a resumed run would not repeat an uninterrupted one.
"""

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from etag.core.errors import EtagError
from etag.core.options import file_error
from etag.core.text import brief, listing

MAX_STAGES = 6
Width = Annotated[int, Field(ge=1, le=1 << 14)]
Depth = Annotated[int, Field(ge=1, le=64)]
Side = Annotated[int, Field(ge=1, le=1 << 14)]
Positive = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
# our ResNet tells why: strided 1x1 convolutions of up to 8 channels may write out of bounds on a CPU
ResNetWidth = Annotated[int, Field(ge=16, le=1 << 14)]
Stages = Field(min_length=1, max_length=MAX_STAGES)
Activation = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu", "swish"]


class Architecture(BaseModel):
    """What all families have. Defaults are those of transformers, whose files leave some values out."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)  # other keys are ignored

    has_maps: ClassVar[bool] = True
    model_type: str
    num_channels: Annotated[int, Field(ge=1, le=1000)] = 3
    hidden_act: Activation = "gelu"

    @property
    @abstractmethod
    def widths(self) -> list[int]:
        """Channels, or the size of tokens, after each stage."""

    @property
    @abstractmethod
    def min_side(self) -> int:
        """The smallest side of images, in pixels."""

    @property
    def signed(self) -> bool:
        """Whether features may be negative."""
        return True


class Tokens(Architecture):
    """Blocks of equal width on a class token and one token per patch of the image; each block is a stage."""

    has_maps: ClassVar[bool] = False
    hidden_size: Width = 768
    num_hidden_layers: Depth = 12
    num_attention_heads: Width = 12
    layer_norm_eps: Positive
    image_size: Side = 224
    patch_size: Side = 16
    qkv_bias: bool = True

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"hidden_size={self.hidden_size} is no multiple of the {self.num_attention_heads} heads")
        if self.image_size < self.patch_size:
            raise ValueError(f"image_size={self.image_size} is smaller than patch_size={self.patch_size}")
        return self

    @property
    def widths(self) -> list[int]:
        """The same after each block."""
        return [self.hidden_size] * self.num_hidden_layers

    @property
    def min_side(self) -> int:
        """One patch."""
        return self.patch_size


class ViT(Tokens):
    """The Vision Transformer."""

    intermediate_size: Width = 3072
    layer_norm_eps: Positive = 1e-12


class DINOv2(Tokens):
    """DINOv2. Its largest network, with the key use_swiglu_ffn, is not supported."""

    mlp_ratio: Annotated[int, Field(ge=1, le=64)] = 4
    layer_norm_eps: Positive = 1e-6
    patch_size: Side = 14
    layerscale_value: float = 1.0
    use_swiglu_ffn: Literal[False] = False


class DINOv2WithRegisters(DINOv2):
    """DINOv2 with some more tokens."""

    patch_size: Side = 16
    num_register_tokens: Annotated[int, Field(ge=0, le=1000)] = 4


class ConvNeXt(Architecture):
    """ConvNeXt: each stage halves the side of its maps, except the first."""

    patch_size: Side = 4
    num_stages: int = 4
    hidden_sizes: Annotated[list[Width], Stages] = [96, 192, 384, 768]
    depths: Annotated[list[Depth], Stages] = [3, 3, 9, 3]
    layer_norm_eps: Positive = 1e-12
    layer_scale_init_value: Annotated[float, Field(ge=0)] = 1e-6

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not len(self.hidden_sizes) == len(self.depths) == self.num_stages:
            raise ValueError("hidden_sizes and depths need num_stages numbers each")
        return self

    @property
    def widths(self) -> list[int]:
        """Those of the configuration."""
        return list(self.hidden_sizes)

    @property
    def min_side(self) -> int:
        """The factor by which the side is reduced."""
        return int(self.patch_size * 2 ** (len(self.depths) - 1))


class ResNet(Architecture):
    """ResNets of basic or of bottleneck blocks."""

    embedding_size: ResNetWidth = 64
    hidden_sizes: Annotated[list[ResNetWidth], Stages] = [256, 512, 1024, 2048]
    depths: Annotated[list[Depth], Stages] = [3, 4, 6, 3]
    layer_type: Literal["basic", "bottleneck"] = "bottleneck"
    hidden_act: Activation = "relu"
    downsample_in_first_stage: bool = False
    downsample_in_bottleneck: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.hidden_sizes) != len(self.depths):
            raise ValueError("hidden_sizes and depths need equally many numbers")
        if self.layer_type == "bottleneck" and min(self.hidden_sizes) < 64:
            raise ValueError("hidden_sizes must be at least 64 with bottleneck layers")
        return self

    @property
    def widths(self) -> list[int]:
        """Those of the configuration."""
        return list(self.hidden_sizes)

    @property
    def min_side(self) -> int:
        """The factor by which the side is reduced."""
        return int(4 * 2 ** (len(self.depths) - 1 + self.downsample_in_first_stage))

    @property
    def signed(self) -> bool:
        """Not after a ReLU."""
        return self.hidden_act != "relu"


class Swin(Architecture):
    """Swin: attention within windows; each stage ends by halving the side, except the last."""

    image_size: Side = 224
    patch_size: Side = 4
    embed_dim: Width = 96
    depths: Annotated[list[Depth], Stages] = [2, 2, 6, 2]
    num_heads: Annotated[list[Width], Stages] = [3, 6, 12, 24]
    window_size: Annotated[int, Field(ge=1, le=24)] = 7
    mlp_ratio: Annotated[float, Field(ge=0.1, le=64)] = 4.0
    qkv_bias: bool = True
    use_absolute_embeddings: Literal[False] = False
    layer_norm_eps: Positive = 1e-5

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.num_heads) != len(self.depths):
            raise ValueError("num_heads and depths need equally many numbers")
        for number, heads in enumerate(self.num_heads):
            if (width := self.embed_dim * 2**number) % heads:
                raise ValueError(f"the width of stage {number + 1}, {width}, is no multiple of its {heads} heads")
        return self

    @property
    def widths(self) -> list[int]:
        """They double wherever the side is halved."""
        last = len(self.depths) - 1
        return [self.embed_dim * 2 ** min(number + 1, last) for number in range(last + 1)]

    @property
    def min_side(self) -> int:
        """One window in the last stage."""
        return int(self.window_size * self.patch_size * 2 ** (len(self.depths) - 1))


FAMILIES: dict[str, type[Architecture]] = {
    "vit": ViT,
    "dinov2": DINOv2,
    "dinov2_with_registers": DINOv2WithRegisters,
    "convnext": ConvNeXt,
    "resnet": ResNet,
    "swin": Swin,
}


def read_architecture(values: Any, origin: str) -> Architecture:
    """The checked content of a config.json; an error names `origin`, where the values come from."""
    if not isinstance(values, dict):
        raise EtagError(f"{origin} cannot be used: it is not a group of keys and values.")
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        found = "it has no model_type" if kind is None else f"its model_type is {brief(kind)}"
        raise EtagError(f"{origin} cannot be used: {found}, and etag supports {listing(list(FAMILIES))}.")
    try:
        return FAMILIES[kind].model_validate(values)
    except ValidationError as error:
        raise file_error(error, origin) from error
