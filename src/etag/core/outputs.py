"""What a solver says about a batch, and who asks for which part of it."""

from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Protocol, TypeVar

from torch import Tensor

V = TypeVar("V")


class Need(Flag):
    """Parts of a forward pass. Terms declare theirs; the union is computed once."""

    NOTHING = 0
    FEATURE = auto()  # the pooled feature of the images themselves
    LOGITS = auto()  # the head's outputs for the images themselves
    VIEW_FEATURES = auto()  # the pooled feature of every view that is looked at
    STAGES = auto()  # every stage's map, before and after its activation, of the images themselves
    AUXILIARY = auto()  # the auxiliary classifiers' outputs, of every view that is looked at


@dataclass(frozen=True)
class Views:
    """What a solver is shown of a batch: the images, and behind them other views of them."""

    rows: Tensor
    images: int  # that are the images themselves
    picked: Tensor | None = None  # rows that are looked at as views; None is all of them
    labels: Tensor | None = None  # of those rows: which class and which view


@dataclass
class Outputs:
    """One forward pass."""

    feature: Tensor | None = None
    logits: Tensor | None = None
    view_features: Tensor | None = None
    raw_stages: list[Tensor] = field(default_factory=list)  # before the activation
    stages: list[Tensor] = field(default_factory=list)  # the rest is computed from these
    auxiliary: list[Tensor] = field(default_factory=list)


def require(value: V | None) -> V:
    """A part of Outputs that was asked for: its absence is a mistake in our code, not the user's."""
    if value is None:
        raise RuntimeError("this output was not asked for: declare it in the term's or predictor's need")
    return value


class Predictor(Protocol):
    """A pure map from Outputs to scores over classes, with its own saved state."""

    need: Need
    probabilities: bool  # whether its scores are probabilities; else logarithms of such, up to a constant a row

    def __call__(self, outputs: Outputs) -> Tensor:
        """Scores, one row an image, one column a class; the highest one is the answer."""

    def state_dict(self) -> dict[str, Tensor]:
        """What must be kept to predict again."""
