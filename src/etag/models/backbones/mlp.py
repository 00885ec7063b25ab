"""A multilayer perceptron, for small images such as MNIST's."""

from torch import nn

from etag.models.backbone import BACKBONES, Backbone, ModelOptions
from etag.models.modules import Modules


class MLP(Backbone):
    """Two hidden layers of equal width, each one stage; stages return features (rows, width), not maps."""

    min_side, has_maps = 1, False

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.feature_size = width
        self.stages = Modules([nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU()), self.new_stage(2)])

    def new_stage(self, _number: int, _short: bool = False) -> nn.Sequential:
        """Return a new hidden layer."""
        return nn.Sequential(nn.Linear(self.feature_size, self.feature_size), nn.ReLU())


@BACKBONES.add("mlp")
def mlp(options: ModelOptions, channels: int, size: int) -> Backbone:
    """Return an MLP; the default width is 400, as in van de Ven and Tolias (2018)."""
    return MLP(channels * size**2, options.width or 400)
