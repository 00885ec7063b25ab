"""Classification heads that grow by blocks, one a task."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from etag.models.initial import build
from etag.models.modules import Modules


class LinearHead(nn.Module):
    """A linear layer whose rows come in blocks of parameters.

    A block is a unit of freezing: a row with zero gradient inside a larger parameter would still be moved by
    Adam's weight decay.
    """

    def __init__(self, features: int, bias: bool = True) -> None:
        super().__init__()
        self.features, self.bias = features, bias
        self.blocks: Modules[nn.Linear] = Modules()

    def grow(self, outputs: int, generator: torch.Generator) -> None:
        """Add a block of outputs."""
        self.blocks.append(build(lambda: nn.Linear(self.features, outputs, self.bias), generator))

    @property
    def outputs(self) -> int:
        """Width over all blocks."""
        return sum(block.out_features for block in self.blocks)

    def forward(self, features: Tensor) -> Tensor:
        """Logits of all blocks, side by side."""
        weight = torch.cat([block.weight for block in self.blocks])
        bias = torch.cat([block.bias for block in self.blocks]) if self.bias else None
        return functional.linear(features, weight, bias)
