"""VGG-11 (Simonyan and Zisserman, 2015) with BatchNorm, and global pooling instead of fully connected layers."""

from torch import nn

from etag.models.backbone import BACKBONES, Backbone, ModelOptions
from etag.models.modules import ConvNorm, Modules

# for each stage: number of convolutions, width as a multiple of the first stage's
STAGES = ((1, 1), (1, 2), (2, 4), (2, 8), (2, 8))


def _convolutions(channels: int, out: int, count: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for _ in range(count):  # without bias, unlike the original: BatchNorm would subtract it again
        layers += [ConvNorm(channels, out, 3), nn.ReLU()]
        channels = out
    return layers


class VGG11(Backbone):
    """Five stages of 3x3 convolutions, each ending in 2x2 max pooling."""

    min_side = 2 ** len(STAGES)

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.widths = [channels, *(factor * width for _, factor in STAGES)]
        self.feature_size = self.widths[-1]
        self.stages = Modules(self.new_stage(number) for number in range(1, len(STAGES) + 1))

    def new_stage(self, number: int, short: bool = False) -> nn.Sequential:
        """Return new convolutions (short: one) and pooling; after the last stage, of maybe one pixel, no pooling."""
        before, convolutions = self.widths[number - 1], 1 if short else STAGES[min(number, len(STAGES)) - 1][0]
        if number > len(STAGES):
            return nn.Sequential(*_convolutions(before, before, convolutions))
        *layers, activation = _convolutions(before, self.widths[number], convolutions)
        # equals pooling after the activation, and is cheaper
        return nn.Sequential(*layers, nn.MaxPool2d(2), activation)


@BACKBONES.add("vgg11")
def vgg11(options: ModelOptions, channels: int, _: int) -> Backbone:
    """Return a VGG-11; the default width is 64."""
    return VGG11(channels, options.width or 64)
