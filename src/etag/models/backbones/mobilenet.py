"""MobileNetV2 (Sandler et al., 2018)."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from etag.models.backbone import BACKBONES, Backbone, ModelOptions
from etag.models.modules import ConvNorm, Modules


class Row(NamedTuple):
    """One row of the paper's Table 2: equal blocks, of which only the first uses the stride."""

    expansion: int
    channels: int
    blocks: int
    stride: int


# Table 2 for width 32, grouped by resolution
DEFAULT_WIDTH, LAST = 32, 1280
STAGES: tuple[tuple[Row, ...], ...] = (
    (Row(1, 16, 1, 1),),
    (Row(6, 24, 2, 2),),
    (Row(6, 32, 3, 2),),
    (Row(6, 64, 4, 2), Row(6, 96, 3, 1)),
    (Row(6, 160, 3, 2), Row(6, 320, 1, 1)),
)
# a repeated last group, to follow the last one, whose wide output needs no further expansion
EXTRA_STAGE = (Row(1, 160, 1, 1), Row(6, 160, 2, 1), Row(6, 320, 1, 1))


def _convolution(channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [ConvNorm(channels, out, kernel, stride, groups), nn.ReLU6()]


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project without activation; the input is added if the shapes are equal."""

    def __init__(self, channels: int, out: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = expansion * channels
        self.residual = stride == 1 and channels == out
        self.layers = nn.Sequential(
            *(_convolution(channels, hidden, 1) if expansion > 1 else ()),
            *_convolution(hidden, hidden, 3, stride, groups=hidden),
            ConvNorm(hidden, out, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, which may be negative."""
        y: Tensor = self.layers(x)
        return x + y if self.residual else y


class MobileNetV2(Backbone):
    """Five stages of inverted residuals, one per resolution; the last ends in a wide 1x1 convolution. With the stem for
    small images, neither the first convolution nor the second stage reduces the side. All widths, including the last,
    are proportional to `width`."""

    def __init__(self, channels: int, width: int, imagenet: bool) -> None:
        super().__init__()
        self.width, self.imagenet = width, imagenet
        self.feature_size = self._scaled(LAST)
        self.min_side = 32 if imagenet else 8
        stem = _convolution(channels, width, 3, 2 if imagenet else 1)
        first = nn.Sequential(*stem, *self._blocks(width, STAGES[0]), nn.Identity())
        self.stages = Modules([first, *(self.new_stage(number) for number in range(2, len(STAGES) + 1))])

    def new_stage(self, number: int, short: bool = False) -> nn.Sequential:
        """Return new blocks of one resolution; a short stage is one block with the stage's last width."""
        rows = STAGES[number - 1] if number <= len(STAGES) else EXTRA_STAGE
        if short:
            rows = (rows[0]._replace(channels=rows[-1].channels, blocks=1),)
        if number == 2 and not self.imagenet:
            rows = tuple(row._replace(stride=1) for row in rows)
        before = self._scaled(STAGES[number - 2][-1].channels) if number <= len(STAGES) else self.feature_size
        layers = self._blocks(before, rows)
        if number < len(STAGES):
            return nn.Sequential(*layers, nn.Identity())  # a linear bottleneck has no activation
        return nn.Sequential(*layers, *_convolution(self._scaled(rows[-1].channels), self.feature_size, 1))

    def _blocks(self, channels: int, rows: Sequence[Row]) -> list[nn.Module]:
        layers: list[nn.Module] = []
        for row in rows:
            out = self._scaled(row.channels)
            for number in range(row.blocks):
                layers.append(InvertedResidual(channels, out, 1 if number else row.stride, row.expansion))
                channels = out
        return layers

    def _scaled(self, channels: int) -> int:
        return max(1, round(channels * self.width / DEFAULT_WIDTH))


@BACKBONES.add("mobilenetv2")
def mobilenetv2(options: ModelOptions, channels: int, size: int) -> Backbone:
    """Return a MobileNetV2; the default width, that of the first convolution, is 32."""
    return MobileNetV2(channels, options.width or DEFAULT_WIDTH, options.imagenet_stem(size))
