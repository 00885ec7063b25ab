"""ResNet-18 (He et al., 2016) with the 3x3 stem used for small images or the original one."""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from etag.models.backbone import BACKBONES, Backbone, ModelOptions


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, after its last ReLU."""
        y = functional.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y)) + self.shortcut(x)
        return functional.relu(y, inplace=True)


def _stage(channels: int, out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(channels, out, stride), BasicBlock(out, out, 1))


def _stem(channels: int, width: int, imagenet: bool) -> list[nn.Module]:
    if imagenet:
        conv, end = nn.Conv2d(channels, width, 7, 2, 3, bias=False), [nn.MaxPool2d(3, 2, 1)]
    else:
        conv, end = nn.Conv2d(channels, width, 3, 1, 1, bias=False), []
    return [conv, nn.BatchNorm2d(width), nn.ReLU(inplace=True), *end]


class ResNet18(Backbone):
    """Four stages of two blocks; the width doubles and the side halves from stage to stage."""

    def __init__(self, channels: int, width: int, imagenet: bool) -> None:
        super().__init__()
        self.widths = [width, 2 * width, 4 * width, 8 * width]
        self.feature_size = self.widths[-1]
        first = nn.Sequential(*_stem(channels, width, imagenet), *_stage(width, width, 1))
        self.stages = nn.ModuleList([first, *(_stage(a, b, 2) for a, b in pairwise(self.widths))])

    def branch(self, stage: int) -> nn.Module:
        """The stages after `stage` once more; one at stride 1 after the last."""
        following = [_stage(a, b, 2) for a, b in pairwise(self.widths[stage - 1 :])]
        return nn.Sequential(*(following or [_stage(self.feature_size, self.feature_size, 1)]))


@BACKBONES.add("resnet18")
def resnet18(options: ModelOptions, channels: int, size: int) -> Backbone:
    """Build it for images of this many channels and pixels."""
    imagenet = options.stem == "imagenet" or (options.stem == "auto" and size > 64)
    return ResNet18(channels, options.width, imagenet)
