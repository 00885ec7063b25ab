"""Networks of inverted residuals, such as MobileNetV2 (Sandler et al., 2018)."""

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
    kernel: int = 3


Stages = Sequence[Sequence[Row]]  # rows grouped by resolution
DEFAULT_WIDTH, LAST = 32, 1280  # of the first and of the last convolution
# Table 2 of MobileNetV2 for width 32
MOBILENET: Stages = (
    (Row(1, 16, 1, 1),),
    (Row(6, 24, 2, 2),),
    (Row(6, 32, 3, 2),),
    (Row(6, 64, 4, 2), Row(6, 96, 3, 1)),
    (Row(6, 160, 3, 2), Row(6, 320, 1, 1)),
)


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project without activation; the input is added if the shapes are equal."""

    def __init__(
        self, channels: int, out: int, stride: int, expansion: int, kernel: int = 3, conv: type[ConvNorm] = ConvNorm
    ) -> None:
        super().__init__()
        hidden = expansion * channels
        self.residual = stride == 1 and channels == out
        # identities where files of weights count activations
        self.layers = nn.Sequential(
            *((conv(channels, hidden, 1, activation="relu6"), nn.Identity()) if expansion > 1 else ()),
            conv(hidden, hidden, kernel, stride, hidden, activation="relu6"),
            nn.Identity(),
            conv(hidden, out, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, which may be negative."""
        y: Tensor = self.layers(x)
        return x + y if self.residual else y


class InvertedResiduals(Backbone):
    """Five stages of inverted residuals, one per resolution; the last ends in a wide 1x1 convolution. With the stem for
    small images, neither the first convolution nor the second stage reduces the side."""

    def __init__(
        self, channels: int, stages: Stages, first: int, last: int, imagenet: bool, conv: type[ConvNorm] = ConvNorm
    ) -> None:
        super().__init__()
        self.rows, self.imagenet, self.feature_size, self._conv = stages, imagenet, last, conv
        self.min_side = 32 if imagenet else 8
        stem = conv(channels, first, 3, 2 if imagenet else 1, activation="relu6")
        self.stages = Modules([nn.Sequential(stem, nn.Identity(), *self._blocks(first, stages[0]), nn.Identity())])
        for number in range(2, len(stages) + 1):
            self.stages.append(self.new_stage(number))

    def new_stage(self, number: int, short: bool = False) -> nn.Sequential:
        """Return new blocks of one resolution; a short stage is one block with the stage's last width."""
        count = len(self.rows)
        rows = self.rows[number - 1] if number <= count else self._extra_rows()
        if short:
            rows = (rows[0]._replace(channels=rows[-1].channels, blocks=1),)
        if number == 2 and not self.imagenet:
            rows = tuple(row._replace(stride=1) for row in rows)
        before = self.rows[number - 2][-1].channels if number <= count else self.feature_size
        layers = self._blocks(before, rows)
        if number < count:
            return nn.Sequential(*layers, nn.Identity())  # a linear bottleneck has no activation
        return nn.Sequential(*layers, self._conv(rows[-1].channels, self.feature_size, 1), nn.ReLU6())

    def _extra_rows(self) -> Sequence[Row]:
        """A repeated last group, to follow the last one, whose wide output needs no further expansion."""
        first, *_, last = self.rows[-1]
        narrow = first._replace(blocks=1, stride=1)
        return (narrow._replace(expansion=1), narrow._replace(blocks=max(1, first.blocks - 1)), last)

    def _blocks(self, channels: int, rows: Sequence[Row]) -> list[nn.Module]:
        layers: list[nn.Module] = []
        for row in rows:
            for number in range(row.blocks):
                stride = 1 if number else row.stride
                layers.append(InvertedResidual(channels, row.channels, stride, row.expansion, row.kernel, self._conv))
                channels = row.channels
        return layers


@BACKBONES.add("mobilenetv2")
def mobilenetv2(options: ModelOptions, channels: int, size: int) -> Backbone:
    """Return a MobileNetV2; all widths, including the last, are proportional to that of the first convolution, 32 by
    default."""
    width = options.width or DEFAULT_WIDTH

    def scaled(channels: int) -> int:
        return max(1, round(channels * width / DEFAULT_WIDTH))

    stages = [[row._replace(channels=scaled(row.channels)) for row in rows] for rows in MOBILENET]
    return InvertedResiduals(channels, stages, width, scaled(LAST), options.imagenet_stem(size))
