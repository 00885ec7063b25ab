"""EfficientNet-Lite 0 to 2: EfficientNet (Tan and Le, 2019) without what phones compute slowly."""

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from etag.models.backbone import BACKBONES, Backbone, ModelOptions
from etag.models.backbones.mobilenet import DEFAULT_WIDTH, LAST, InvertedResidual, InvertedResiduals, Row, Stages
from etag.models.convolution import zero_padded
from etag.models.modules import ConvNorm

# Table 1 of EfficientNet
EFFICIENTNET: Stages = (
    (Row(1, 16, 1, 1),),
    (Row(6, 24, 2, 2),),
    (Row(6, 40, 2, 2, 5),),
    (Row(6, 80, 3, 2), Row(6, 112, 3, 1, 5)),
    (Row(6, 192, 4, 2, 5), Row(6, 320, 1, 1)),
)


class TensorflowConvNorm(ConvNorm):
    """Pads as TensorFlow does: where an odd number of zeros is needed, there is one more at the end."""

    epsilon = 1e-3

    def placed(self, weight: Tensor, x: Tensor) -> Tensor:
        """Return the kernel, with zeros in front where the side of `x` is even. A stride of 2 then needs an odd number
        of zeros, and this is faster than to copy `x` with them."""
        if cast(nn.Conv2d, self[0]).stride[0] != 2:
            return weight
        for axis, side in ((2, x.shape[2]), (3, x.shape[3])):
            if side % 2 == 0:  # joined, not padded: ONNX files with padded weights cannot be opened
                weight = torch.cat([torch.zeros_like(weight.narrow(axis, 0, 1)), weight], dim=axis)
        return weight

    def convolved(self, x: Tensor) -> Tensor:
        """Return the map after the convolution alone."""
        conv = cast(nn.Conv2d, self[0])
        kernel, stride = conv.kernel_size[0], conv.stride[0]
        if stride == 1:
            return super().convolved(x)
        (left, right), (top, bottom) = (
            (zeros // 2, zeros - zeros // 2)
            for side in reversed(x.shape[2:])
            for zeros in [max(0, (math.ceil(side / stride) - 1) * stride + kernel - side)]
        )
        x = zero_padded(x, (left, right, top, bottom))
        return functional.conv2d(x, conv.weight, None, stride, 0, 1, conv.groups)


class EfficientNetLite(InvertedResiduals):
    """The names of its tensors are ours; those of the package efficientnet_lite_pytorch are translated."""

    def translate_name(self, name: str) -> str:
        """Return the name here of a tensor of efficientnet_lite_pytorch; other names are returned unchanged."""
        layer, _, rest = name.partition(".")
        *_, last = self.stages
        end = f"stages.{len(self.stages) - 1}.{len(last) - 2}"
        outer = {"_conv_stem": "stages.0.0.0", "_bn0": "stages.0.0.1", "_conv_head": f"{end}.0", "_bn1": f"{end}.1"}
        if layer in outer:
            return f"{outer[layer]}.{rest}"
        if layer != "_blocks":
            return name
        number, _, rest = rest.partition(".")
        part, _, rest = rest.partition(".")
        places = [
            (f"stages.{stage}.{place}.layers", len(block.layers))
            for stage, layers in enumerate(self.stages)
            for place, block in enumerate(layers)
            if isinstance(block, InvertedResidual)
        ]
        if not number.isdecimal() or int(number) >= len(places) or part not in _PARTS:
            return name
        prefix, length = places[int(number)]
        from_end, inner = _PARTS[part]
        return f"{prefix}.{length - from_end}.{inner}.{rest}"


# of a block in efficientnet_lite_pytorch -> place counted from the end of `layers`, place in the ConvNorm
_PARTS = {
    "_expand_conv": (5, 0),
    "_bn0": (5, 1),
    "_depthwise_conv": (3, 0),
    "_bn1": (3, 1),
    "_project_conv": (1, 0),
    "_bn2": (1, 1),
}


def _efficientnet_lite(width: float, depth: float) -> Callable[[ModelOptions, int, int], Backbone]:
    """A function that creates the network. First and last layers have the same width and depth in all variants."""

    def scaled(channels: int) -> int:
        """The nearest multiple of 8, but at least 90 % of the exact number."""
        exact = channels * width
        rounded = max(8, int(exact + 4) // 8 * 8)
        return rounded + 8 if rounded < 0.9 * exact else rounded

    def create(options: ModelOptions, channels: int, _size: int) -> Backbone:
        """Return an EfficientNet-Lite; all widths are proportional to that of the first convolution, 32 by default."""
        first = options.width or DEFAULT_WIDTH
        rows = [list(group) for group in EFFICIENTNET]
        for group in rows:
            for place, row in enumerate(group):
                at_end = group is rows[0] or (group is rows[-1] and place == len(group) - 1)
                blocks = row.blocks if at_end else math.ceil(row.blocks * depth)
                out = max(1, scaled(row.channels) * first // DEFAULT_WIDTH)
                group[place] = row._replace(channels=out, blocks=blocks)
        last = max(1, LAST * first // DEFAULT_WIDTH)
        return EfficientNetLite(channels, rows, first, last, options.stem != "cifar", TensorflowConvNorm)

    return create


for _name, _width, _depth in (("lite0", 1.0, 1.0), ("lite1", 1.0, 1.1), ("lite2", 1.1, 1.2)):
    BACKBONES.add(f"efficientnet_{_name}")(_efficientnet_lite(_width, _depth))
