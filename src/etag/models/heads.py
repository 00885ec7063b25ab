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

    def drop(self, first: int, count: int = 1) -> None:
        """Remove outputs, all of one block; an empty block goes too."""
        for number, block in enumerate(self.blocks):
            if first < block.out_features:
                kept = [row for row in range(block.out_features) if not first <= row < first + count]
                if not kept:
                    del self.blocks[number]
                    return
                left = nn.Linear(self.features, len(kept), self.bias, device=block.weight.device)
                left.load_state_dict({name: value[kept] for name, value in block.state_dict().items()})
                self.blocks[number] = left
                return
            first -= block.out_features

    @property
    def outputs(self) -> int:
        """Width over all blocks."""
        return sum(block.out_features for block in self.blocks)

    @property
    def weight(self) -> Tensor:
        """The rows of all blocks."""
        return torch.cat([block.weight for block in self.blocks])

    @property
    def trained_with_new(self) -> list[nn.Parameter]:
        """The parameters that learn where old classes are frozen: the last block's, and those of no block."""
        old = {id(parameter) for block in list(self.blocks)[:-1] for parameter in block.parameters()}
        return [parameter for parameter in self.parameters() if id(parameter) not in old]

    def forward(self, features: Tensor) -> Tensor:
        """Logits of all blocks, side by side."""
        bias = torch.cat([block.bias for block in self.blocks]) if self.bias else None
        return functional.linear(features, self.weight, bias)


class CosineHead(LinearHead):
    """Scaled cosines of the feature and a vector a class (Hou et al., 2019); the scale is learned."""

    proxies = 1  # rows a class

    def __init__(self, features: int, scale: float = 1.0) -> None:
        super().__init__(features, bias=False)
        self.scale = nn.Parameter(torch.tensor(float(scale)))

    def cosines(self, features: Tensor) -> Tensor:
        """Without the scale."""
        return functional.normalize(features) @ functional.normalize(self.weight).T

    def forward(self, features: Tensor) -> Tensor:
        """With the scale."""
        return self.scale * self.cosines(features)

    @torch.no_grad()
    def imprint(self, directions: Tensor) -> None:
        """Begin the last block's rows in these directions, as long as the older rows are in the mean."""
        *old, new = self.blocks
        length = torch.cat([block.weight for block in old]).norm(dim=1).mean()
        new.weight.copy_(functional.normalize(directions) * length)


class ProxyHead(CosineHead):
    """Local similarity classifier (Douillard et al., 2020): several proxies a class, the nearer the weightier."""

    def __init__(self, features: int, proxies: int = 10, gamma: float = 1.0, scale: float = 1.0) -> None:
        super().__init__(features, scale)
        self.proxies, self.gamma = proxies, gamma

    def grow(self, outputs: int, generator: torch.Generator) -> None:
        """Add a block of classes; a class's proxies are rows side by side."""
        super().grow(outputs * self.proxies, generator)

    @property
    def outputs(self) -> int:
        """Classes over all blocks."""
        return super().outputs // self.proxies

    def similarities(self, features: Tensor) -> Tensor:
        """Minus the squared distance of the normalized vectors, averaged over a class's proxies by their softmax."""
        near = (2 * self.cosines(features) - 2).view(len(features), -1, self.proxies)
        return (near * (self.gamma * near).softmax(2)).sum(2)

    def forward(self, features: Tensor) -> Tensor:
        """With the scale."""
        return self.scale * self.similarities(features)
