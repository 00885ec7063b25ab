"""Classification heads that grow by blocks, one block per task."""

from collections.abc import Sequence
from typing import Literal, Self

import torch
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional

from etag.core.options import Options
from etag.core.precision import in_single_precision
from etag.models.initial import build
from etag.models.modules import Modules
from etag.models.structure import Rebuildable


class HeadOptions(Options):
    """The layer that maps features to class scores."""

    kind: Literal["linear", "cosine", "proxies"] = Field(
        "linear", description="linear layer, scaled cosines, or several cosines per class"
    )
    growth: Literal["growing", "fixed"] = Field(
        "growing", description="outputs are added with each task, or all exist at once"
    )
    per_task: bool = Field(False, description="one head per task; only the newest is trained")
    compare: Literal["probability", "logit"] = Field(
        "probability",
        description="several heads: compare probabilities of each (eTag paper), or logits (FACIL code base)",
    )
    bias: bool = Field(True, description="bias of a linear head")
    scale: PositiveFloat = Field(1.0, description="initial value of the learned scale of cosine and proxy heads")
    proxies: PositiveInt = Field(10, description="rows per class of a proxy head")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.growth == "fixed" and (self.per_task or self.kind != "linear"):
            raise ValueError("growth=fixed needs one linear head for all tasks: choose growth=growing")
        if self.per_task and self.kind != "linear":
            raise ValueError(f"per_task=true needs linear heads: choose kind=linear instead of {self.kind}")
        return self

    @property
    def signed(self) -> bool:
        """Whether the head uses features of both signs, and so reads them before the last activation."""
        return self.kind != "linear"

    def new_head(self, feature_size: int) -> "LinearHead":
        """A head without outputs."""
        if self.kind == "cosine":
            return CosineHead(feature_size, self.scale)
        if self.kind == "proxies":
            return ProxyHead(feature_size, self.proxies, self.scale)
        return LinearHead(feature_size, self.bias)


class LinearHead(Rebuildable):
    """A linear layer whose rows come in blocks of parameters. A block is the unit of freezing: a row with zero gradient
    inside a larger parameter would still be moved by Adam's weight decay."""

    def __init__(self, feature_size: int, has_bias: bool = True, block_sizes: Sequence[int] = ()) -> None:
        super().__init__()
        self.feature_size, self.has_bias = feature_size, has_bias
        self.blocks: Modules[nn.Linear] = Modules(nn.Linear(feature_size, size, has_bias) for size in block_sizes)

    def grow(self, outputs: int, generator: torch.Generator) -> None:
        """Add a block of randomly initialized outputs."""
        self.blocks.append(build(lambda: nn.Linear(self.feature_size, outputs, self.has_bias), generator))

    def remove_rows(self, first: int, count: int = 1) -> None:
        """Remove `count` outputs of one block; an empty block is removed too."""
        for number, block in enumerate(self.blocks):
            if first < block.out_features:
                left = [row for row in range(block.out_features) if not first <= row < first + count]
                if not left:
                    del self.blocks[number]
                    return
                smaller = nn.Linear(self.feature_size, len(left), self.has_bias, device=block.weight.device)
                smaller.load_state_dict({name: value[left] for name, value in block.state_dict().items()})
                self.blocks[number] = smaller
                return
            first -= block.out_features

    @property
    def outputs(self) -> int:
        """Number of outputs over all blocks."""
        return sum(self.block_sizes)

    @property
    def block_sizes(self) -> list[int]:
        """Rows of each block."""
        return [block.out_features for block in self.blocks]

    @property
    def weight(self) -> Tensor:
        """The rows of all blocks."""
        return torch.cat([block.weight for block in self.blocks])

    @torch.no_grad()
    def assign(self, weight: Tensor, bias: Tensor) -> None:
        """Set all rows and their bias."""
        sizes = self.block_sizes
        for block, rows, values in zip(self.blocks, torch.split(weight, sizes), torch.split(bias, sizes), strict=True):
            block.weight.copy_(rows)
            block.bias.copy_(values)

    @property
    def parameters_without_old_rows(self) -> list[nn.Parameter]:
        """The parameters that train while old classes are frozen: the last block's, and those outside all blocks."""
        old = {id(parameter) for block in list(self.blocks)[:-1] for parameter in block.parameters()}
        return [parameter for parameter in self.parameters() if id(parameter) not in old]

    @in_single_precision
    def forward(self, features: Tensor) -> Tensor:
        """Logits of all blocks, side by side."""
        bias = torch.cat([block.bias for block in self.blocks]) if self.has_bias else None
        return functional.linear(features, self.weight, bias)


class CosineHead(LinearHead):
    """Scaled cosines of the feature and one vector per class (Hou et al., 2019); the scale is learned."""

    proxies = 1  # rows per class

    def __init__(self, feature_size: int, scale: float = 1.0, block_sizes: Sequence[int] = ()) -> None:
        super().__init__(feature_size, False, block_sizes)
        self.scale = nn.Parameter(torch.tensor(float(scale)))

    @in_single_precision
    def cosines(self, features: Tensor) -> Tensor:
        """Cosines without the scale."""
        return functional.normalize(features) @ functional.normalize(self.weight).T

    def forward(self, features: Tensor) -> Tensor:
        """Scaled cosines."""
        return self.scale * self.cosines(features)

    @torch.no_grad()
    def imprint(self, directions: Tensor) -> None:
        """Set the rows of the last block to these directions, with the mean length of the older rows."""
        *old, new = self.blocks
        length = torch.cat([block.weight for block in old]).norm(dim=1).mean()
        new.weight.copy_(functional.normalize(directions) * length)


class ProxyHead(CosineHead):
    """Local similarity classifier (Douillard et al., 2020): several proxies per class, nearer ones weigh more."""

    def __init__(
        self, feature_size: int, proxies: int = 10, scale: float = 1.0, block_sizes: Sequence[int] = ()
    ) -> None:
        super().__init__(feature_size, scale, block_sizes)
        self.proxies = proxies

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Add a block of classes; the proxies of one class are adjacent rows."""
        super().grow(classes * self.proxies, generator)

    @property
    def outputs(self) -> int:
        """Number of classes over all blocks."""
        return super().outputs // self.proxies

    def similarities(self, features: Tensor) -> Tensor:
        """Minus the squared distance of the normalized vectors, averaged over a class's proxies by their softmax."""
        near = (2 * self.cosines(features) - 2).view(len(features), -1, self.proxies)
        return (near * near.softmax(2)).sum(2)

    def forward(self, features: Tensor) -> Tensor:
        """Scaled similarities."""
        return self.scale * self.similarities(features)
