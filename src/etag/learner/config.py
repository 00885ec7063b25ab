"""The part of a configuration that is saved with a model: the method and its networks, training and random seed."""

from typing import Any, Self

from pydantic import Field, SerializeAsAny, field_validator

from etag.core.options import Options, TrainOptions
from etag.core.random import Placement, Stream
from etag.data.preprocess import Preprocess
from etag.learner.pretrained import locate
from etag.methods.base import AnyMethod, Context, MethodOptions
from etag.methods.registry import METHODS
from etag.models.backbone import ModelOptions

UNKNOWN_COUNT = 2**31  # used as the total number of classes when it is unknown


class LearnerConfig(Options):
    """The method, its networks, their training, and the random seed."""

    method: SerializeAsAny[MethodOptions]
    model: ModelOptions = Field(ModelOptions(), description="the solver's backbone")
    train: TrainOptions = Field(TrainOptions(), description="training of the solver")
    seed: int = Field(0, ge=0, lt=2**32, description="random seed; also decides the class order unless one is given")

    @field_validator("method", mode="before")
    @classmethod
    def _with_the_methods_own_options(cls, value: Any) -> Any:
        return METHODS[value["name"]].Options.model_validate(value) if isinstance(value, dict) else value

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """From JSON values; unknown keys are ignored."""
        return cls.model_validate({key: value for key, value in values.items() if key in cls.model_fields})


def create_method(
    config: LearnerConfig, placement: Placement, preprocess: Preprocess, *, channels: int, classes: int = UNKNOWN_COUNT
) -> AnyMethod:
    """An untrained method before its first task."""
    context = Context(
        channels=channels,
        size=preprocess.size,
        classes=classes,
        stream=Stream.root(config.seed),
        placement=placement,
        model=config.model,
        train=config.train,
        preprocess=preprocess,
        locate_weights=lambda source: locate(source).file,
    )
    return METHODS[config.method.name](config.method, context)


def parameter_counts(method: AnyMethod) -> dict[str, int]:
    """Number of parameters of each network, those of the solver listed separately."""
    counts: dict[str, int] = {}
    for role, part in method.parts.items():
        networks = dict(part.named_children()) if role == "solver" else {role: part}
        counts |= {name: sum(p.numel() for p in network.parameters()) for name, network in networks.items()}
    return counts
