"""Typed options. An unknown or bad key is an error before anything heavy starts."""

from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from etag.core.errors import EtagError


def merge(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """Upper values win; mappings are merged, unless the upper one is of another `kind`; anything else is replaced."""
    merged = dict(lower)
    for key, value in upper.items():
        merged[key] = merge(merged[key], value) if _alike(merged.get(key), value) else value
    return merged


def _alike(lower: Any, upper: Any) -> bool:
    if not (isinstance(lower, dict) and isinstance(upper, dict)):
        return False
    return "kind" not in upper or upper["kind"] == lower.get("kind")


def file_error(error: ValidationError, origin: str) -> EtagError:
    """The first thing that is wrong in a file, in a sentence."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    reason = first["msg"].removeprefix("Value error, ")
    return EtagError(f"{origin} cannot be used: {where + ': ' if where else ''}{reason}.")


class Options(BaseModel):
    """Base of all option groups: immutable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


Schedule = Literal["constant", "step", "milestones", "cosine", "onecycle", "plateau"]


class TrainOptions(Options):
    """How one network is trained: optimizer, schedule, length. The defaults are the paper's, for its solver."""

    epochs: PositiveInt = 100
    steps: PositiveInt | None = Field(None, description="length in optimizer steps; replaces `epochs`")
    length: PositiveFloat = Field(
        1.0, description="factor on the length and on the places of all decays: 0.5 is half the training"
    )
    start_size: float = Field(
        1.0,
        gt=0,
        le=1,
        description="images begin at this share of their side and grow; from the middle of the training on they are "
        "whole",
    )
    batch_size: PositiveInt = Field(128, description="images per step over all processes together")
    drop_last: bool = Field(True, description="leave out the short last batch of an epoch, if there is a full one")
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: PositiveFloat = Field(1e-3, description="learning rate; the peak for `onecycle`")
    weight_decay: NonNegativeFloat = Field(2e-4, description="L2 penalty, coupled as in Adam's original form")
    momentum: NonNegativeFloat = Field(0.9, description="of SGD")
    betas: tuple[float, float] = Field((0.9, 0.999), description="of Adam")
    schedule: Schedule = "step"
    decay_every: PositiveInt = Field(30, description="`step`: epochs between two decays")
    milestones: tuple[PositiveInt, ...] = Field(
        (), description="`milestones`: the epochs after which the rate decays"
    )
    decay: PositiveFloat = Field(0.1, description="`step`, `milestones` and `plateau`: factor of a decay")
    warmup: float = Field(0.3, gt=0, lt=1, description="`onecycle`: share of the steps spent rising")
    patience: PositiveInt = Field(5, description="`plateau`: epochs without improvement before a decay")
    min_lr: NonNegativeFloat = Field(1e-4, description="`plateau`: training stops when the rate falls below")
    validation: float = Field(0.0, ge=0, lt=1, description="share of each class held out; `plateau` watches it")
    clip_norm: PositiveFloat | None = Field(None, description="largest global norm of the gradient")
    clip_value: PositiveFloat | None = Field(None, description="largest absolute value of a gradient entry")
    base: dict[str, Any] = Field(default_factory=dict, description="other values of these options, for the base task")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.clip_norm is not None and self.clip_value is not None:
            raise ValueError("clip_norm and clip_value exclude each other")
        if self.validation and self.schedule != "plateau":
            raise ValueError("validation holds images out that only schedule=plateau would watch")
        if self.start_size < 1 and self.steps is not None:
            raise ValueError("start_size grows with the epochs; it does not go with a length in steps")
        if self.base:
            if "base" in self.base:
                raise ValueError("base cannot hold another base")
            self.for_task(0)
        return self

    def for_task(self, index: int) -> Self:
        """The options in force for one task."""
        options = self.model_dump(exclude={"base"})
        if index == 0:
            if "epochs" in self.base:
                options["steps"] = None  # the more particular length wins
            options |= self.base
        return type(self).model_validate(_shortened(options))

    def side(self, whole: int, smallest: int, epoch: int) -> int:
        """Of the images in an epoch: even numbers of pixels, from `start_size` up to the whole."""
        grown = min(1.0, 2 * epoch / self.epochs)
        side = 2 * round(whole * (self.start_size + (1 - self.start_size) * grown) / 2)
        return whole if grown == 1 else min(whole, max(smallest, side))


def _shortened(options: dict[str, Any]) -> dict[str, Any]:
    """Training options, with `length` used up."""
    factor: float = options.pop("length")

    def scaled(count: int) -> int:
        return max(1, round(count * factor))

    for key in ("epochs", "steps", "decay_every"):
        options[key] = options[key] and scaled(options[key])
    return options | {"milestones": tuple(scaled(epoch) for epoch in options["milestones"])}


class RuntimeOptions(Options):
    """Where and in which precision a run computes; never changes what it computes."""

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: PositiveInt = Field(1, description="processes on each machine, one a device; torchrun knows better")
    num_nodes: PositiveInt = Field(1, description="machines")
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    compile: bool = Field(
        False, description="let torch.compile make the stages faster: a minute at the start, then less time a step"
    )
    threads: PositiveInt | None = Field(None, description="CPU threads; None leaves the choice to PyTorch")
    checkpoint_every: NonNegativeFloat = Field(
        300.0, description="seconds between two checkpoints within a phase; 0 is as often as can be"
    )
    checkpoint_steps: PositiveInt | None = Field(
        None, description="also after so many steps of a phase, or the next multiple of ten"
    )
    callbacks: tuple[str, ...] = Field(
        (), description="callbacks by name: tensorboard (the extra `tensorboard`), or those of a plug-in"
    )
