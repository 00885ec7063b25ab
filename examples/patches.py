"""A backbone of your own: a few patch mixers. It works with any method, because it has stages.

etag run --plugin examples/patches.py --set model.backbone=patches
"""

from torch import Tensor, nn

from etag.models.backbone import BACKBONES, Backbone, ModelOptions
from etag.models.modules import Modules


class Mixer(nn.Module):
    """Mixes the pixels of each channel, then the channels of each pixel, and adds the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.space = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = nn.BatchNorm2d(width)
        self.channels = nn.Conv2d(width, width, 1)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps of the same shape."""
        return maps + self.channels(self.norm(self.space(maps)).relu())


class Patches(Backbone):
    """Patches of 2x2 pixels, then three stages of two mixers."""

    min_side = 2

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.feature_size = width
        cut = nn.Conv2d(channels, width, 2, stride=2)
        self.stages = Modules([nn.Sequential(cut, *self.new_stage(1)), self.new_stage(2), self.new_stage(3)])

    def new_stage(self, _number: int, _short: bool = False) -> nn.Sequential:
        """Two mixers and the activation that ends every stage."""
        return nn.Sequential(Mixer(self.feature_size), Mixer(self.feature_size), nn.ReLU())


@BACKBONES.add("patches")
def patches(options: ModelOptions, channels: int, _: int) -> Backbone:
    """A backbone of `model.width` channels; 64 if it is not set."""
    return Patches(channels, options.width or 64)
