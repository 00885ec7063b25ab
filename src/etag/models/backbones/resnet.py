"""ResNets of basic blocks (He et al., 2016), with the 3x3 stem used for small images or the original one."""

import re

from torch import Tensor, nn

from etag.models.backbone import BACKBONES, Backbone, ModelOptions
from etag.models.convolution import every_other
from etag.models.modules import ConvNorm, Modules


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, 1x1 if the shape changes (option B), without the ReLU after the block."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = ConvNorm(channels, out, 3, stride, activation="relu")
        self.second = ConvNorm(out, out, 3)
        self.stride = stride
        self.shortcut = nn.Identity() if stride == 1 and channels == out else ConvNorm(channels, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output before the ReLU that follows."""
        # a 1x1 convolution of every other pixel equals the strided one; the strided one of oneDNN (PyTorch 2.13, CPU,
        # channels_last, up to 8 channels at 64 px) writes out of bounds in the backward pass
        shortcut: Tensor = self.shortcut(x if self.stride == 1 else every_other(x, self.stride))
        direct: Tensor = self.second(self.first(x))
        return direct + shortcut


# names in torchvision -> names here
STEM_NAMES = {"conv1": "stages.0.0.0", "bn1": "stages.0.0.1"}
BLOCK_NAMES = {"conv1": "first.0", "bn1": "first.1", "conv2": "second.0", "bn2": "second.1", "downsample": "shortcut"}


class ResNet(Backbone):
    """Stages with equally many blocks; from stage to stage the width doubles and the side halves."""

    def __init__(self, channels: int, width: int, stages: int, blocks: int, imagenet: bool) -> None:
        super().__init__()
        self.widths = [width * 2**number for number in range(stages)]
        self.blocks, self.imagenet = blocks, imagenet
        self.feature_size = self.widths[-1]
        self.min_side = 2 ** (stages - 1) * (4 if imagenet else 1)
        kernel, stride = (7, 2) if imagenet else (3, 1)
        stem: list[nn.Module] = [ConvNorm(channels, width, kernel, stride, activation="relu"), nn.Identity()]
        if imagenet:
            stem.append(nn.MaxPool2d(3, 2, 1))
        self.stem_size = len(stem)
        first = nn.Sequential(*stem, *self._stage(width, width, 1, blocks))
        self.stages = Modules([first, *(self.new_stage(number) for number in range(2, stages + 1))])

    def new_stage(self, number: int, short: bool = False) -> nn.Sequential:
        """Return a stage of twice the width and half the side (after the last: the same); a short one has one block."""
        before, blocks = self.widths[number - 2], 1 if short else self.blocks
        if number > len(self.widths):
            return self._stage(before, before, 1, blocks)
        return self._stage(before, self.widths[number - 1], 2, blocks)

    @staticmethod
    def _stage(channels: int, out: int, stride: int, count: int) -> nn.Sequential:
        blocks = [BasicBlock(channels, out, stride), *(BasicBlock(out, out, 1) for _ in range(count - 1))]
        return nn.Sequential(*(layer for block in blocks for layer in (block, nn.ReLU())))

    def translate_name(self, name: str) -> str:
        """Return the name here of a tensor in torchvision's ResNets; other names are returned unchanged."""
        if match := re.fullmatch(r"layer(\d+)\.(\d+)\.(\w+)\.(.+)", name):
            stage, block = int(match[1]) - 1, 2 * int(match[2])  # a ReLU follows each block
            if stage == 0:  # the stem's layers come first
                block += self.stem_size
            return f"stages.{stage}.{block}.{BLOCK_NAMES.get(match[3], match[3])}.{match[4]}"
        layer, dot, rest = name.partition(".")
        return STEM_NAMES.get(layer, layer) + dot + rest


@BACKBONES.add("resnet18")
def resnet18(options: ModelOptions, channels: int, size: int) -> Backbone:
    """Return a ResNet-18: four stages of two blocks; the default width is 64."""
    return ResNet(channels, options.width or 64, stages=4, blocks=2, imagenet=options.imagenet_stem(size))


@BACKBONES.add("resnet32")
def resnet32(options: ModelOptions, channels: int, size: int) -> Backbone:
    """Return a ResNet-32 for CIFAR: three stages of five blocks; the default width is 16. Shortcuts are projections
    (option B), so with a head of 10 classes it has 466,906 parameters instead of 464,154 with the parameter-free option
    A."""
    return ResNet(channels, options.width or 16, stages=3, blocks=5, imagenet=options.imagenet_stem(size))
