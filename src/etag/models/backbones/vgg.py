"""VGG-11 (Simonyan and Zisserman, 2015) with BatchNorm, and global pooling instead of fully connected layers."""

from torch import nn

from etag.models.backbone import BACKBONES, Backbone, ModelOptions
from etag.models.modules import ConvNorm, Modules

# convolutions of a stage, and their width in multiples of the first stage's
STAGES = ((1, 1), (1, 2), (2, 4), (2, 8), (2, 8))


def _convolutions(channels: int, out: int, count: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for _ in range(count):  # without the original's bias, which BatchNorm would take away again
        layers += [ConvNorm(channels, out, 3), nn.ReLU()]
        channels = out
    return layers


class VGG11(Backbone):
    """Five stages of 3x3 convolutions, each ending in 2x2 max pooling."""

    smallest = 2 ** len(STAGES)

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.widths = [channels, *(factor * width for _, factor in STAGES)]
        self.feature_size = self.widths[-1]
        self.stages = Modules(self.new_stage(number) for number in range(1, len(STAGES) + 1))

    def new_stage(self, number: int) -> nn.Sequential:
        """Convolutions and pooling; behind the last without the latter, for there may be one pixel left."""
        return self._stage(number, STAGES[min(number, len(STAGES)) - 1][0])

    def short_stage(self, number: int) -> nn.Sequential:
        """Of one convolution."""
        return self._stage(number, 1)

    def _stage(self, number: int, convolutions: int) -> nn.Sequential:
        before = self.widths[number - 1]
        if number > len(STAGES):
            return nn.Sequential(*_convolutions(before, before, convolutions))
        *layers, activation = _convolutions(before, self.widths[number], convolutions)
        return nn.Sequential(*layers, nn.MaxPool2d(2), activation)  # the same as pooling last, and cheaper


@BACKBONES.add("vgg11")
def vgg11(options: ModelOptions, channels: int, _: int) -> Backbone:
    """Classic at width 64."""
    return VGG11(channels, options.width or 64)
