"""What a solver computes for a batch, and which of it is needed."""

from dataclasses import dataclass, field
from enum import Flag, auto
from typing import TypeVar

from torch import Tensor

V = TypeVar("V")


class Need(Flag):
    """Parts of a forward pass. Each loss term declares its own; the union is computed once."""

    NOTHING = 0
    FEATURE = auto()  # the pooled feature of each image
    LOGITS = auto()  # the head's outputs for each image
    VIEW_FEATURES = auto()  # the pooled feature of each selected view
    STAGES = auto()  # the map of every stage that trains for each image, before and after the stage's activation
    AUXILIARY = auto()  # the outputs of the auxiliary classifiers for each selected view


@dataclass(frozen=True)
class Views:
    """The inputs of one solver pass: the images first, then further views of them (rotations and the like)."""

    inputs: Tensor  # images, or what the first `after` stages make of them, or features
    image_count: int  # the first rows of `inputs`: the images themselves
    selected: Tensor | None = None  # rows of `inputs` that the auxiliaries see; None: all
    labels: Tensor | None = None  # of the selected rows: the class and the view together
    after: int = 0  # how many stages have processed `inputs`


@dataclass
class Outputs:
    """The result of one forward pass; parts that were not asked for are None or empty."""

    feature: Tensor | None = None
    logits: Tensor | None = None
    view_features: Tensor | None = None
    raw_stages: list[Tensor] = field(default_factory=list)  # before the activation
    stages: list[Tensor] = field(default_factory=list)  # after the activation
    auxiliary: list[Tensor] = field(default_factory=list)


def require(value: V | None) -> V:
    """Return `value`, which must not be None. If it is, the mistake is ours and not the user's: a term uses an output
    that it did not declare as a need, or a part was not built."""
    if value is None:
        raise RuntimeError("a value that must exist here is None: an output without a declared need, or a missing part")
    return value
