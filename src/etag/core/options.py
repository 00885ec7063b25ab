"""Typed options: an unknown key or an invalid value is an error before any expensive work starts."""

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
    """Return `lower` updated by `upper`; mappings are merged recursively, but one whose key `kind` has another value
    replaces the lower one."""
    merged = dict(lower)
    for key, value in upper.items():
        before: Any = merged.get(key)
        both = isinstance(before, dict) and isinstance(value, dict)
        same_kind = both and ("kind" not in value or value["kind"] == before.get("kind"))
        merged[key] = merge(before, value) if same_kind else value
    return merged


def dotted(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one mapping by dotted key; an empty mapping stays a value."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= dotted(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return flat


def file_error(error: ValidationError, origin: str) -> EtagError:
    """Return an EtagError that describes the first validation error in the file `origin`."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    reason = first["msg"].removeprefix("Value error, ")
    return EtagError(f"{origin} cannot be used: {where + ': ' if where else ''}{reason}.")


class Options(BaseModel):
    """Base class of all option groups: immutable, and unknown keys are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


Schedule = Literal["constant", "step", "milestones", "cosine", "onecycle", "plateau"]


class TrainOptions(Options):
    """How one network is trained: optimizer, learning-rate schedule, length. The defaults are the paper's."""

    epochs: PositiveInt = Field(100, description="number of epochs")
    steps: PositiveInt | None = Field(None, description="number of optimizer steps; if set, it replaces `epochs`")
    length_factor: PositiveFloat = Field(1.0, description="multiplies epochs, steps, decay_every and milestones")
    batch_size: PositiveInt = Field(128, description="images per optimizer step, over all processes together")
    drop_last: bool = Field(True, description="skip the last batch of an epoch if it is smaller than the others")
    optimizer: Literal["adam", "sgd"] = Field("adam", description="optimizer: adam or sgd (with momentum)")
    lr: PositiveFloat = Field(1e-3, description="initial learning rate; the highest one with schedule=onecycle")
    weight_decay: NonNegativeFloat = Field(2e-4, description="L2 penalty, added to the gradient")
    momentum: NonNegativeFloat = Field(0.9, description="momentum of sgd")
    betas: tuple[float, float] = Field((0.9, 0.999), description="decay rates of adam's two running averages")
    schedule: Schedule = Field(
        "step",
        description="learning rate: constant; step: decays every `decay_every` epochs; milestones: decays "
        "after the epochs of `milestones`; cosine: falls to 0; onecycle: rises to `lr`, then "
        "falls; plateau: decays when the validation loss (without `validation`, the training loss) "
        "stops improving",
    )
    decay_every: PositiveInt = Field(30, description="schedule=step: number of epochs between two decays")
    milestones: tuple[PositiveInt, ...] = Field(
        (), description="schedule=milestones: epochs after which the learning rate decays"
    )
    decay: PositiveFloat = Field(0.1, description="factor on the learning rate at each decay")
    warmup: float = Field(0.3, gt=0, lt=1, description="schedule=onecycle: share of the steps with a rising rate")
    patience: PositiveInt = Field(5, description="schedule=plateau: epochs without improvement before a decay")
    min_lr: NonNegativeFloat = Field(1e-4, description="schedule=plateau: stop below this learning rate")
    validation: float = Field(
        0.0, ge=0, lt=1, description="schedule=plateau: share of the images held out for the validation loss"
    )
    clip_norm: PositiveFloat | None = Field(None, description="largest norm of the whole gradient; null: any")
    clip_value: PositiveFloat | None = Field(None, description="largest absolute value in a gradient; null: any")
    base: dict[str, Any] = Field(default_factory=dict, description="values that differ for the base task, by key")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.clip_norm is not None and self.clip_value is not None:
            raise ValueError("clip_norm and clip_value exclude each other: set one of them")
        if self.validation and self.schedule != "plateau":
            raise ValueError("validation is only used with schedule=plateau: set that schedule, or validation=0")
        if self.base:
            if "base" in self.base:
                raise ValueError("base cannot contain another base")
            self.for_task(0)
        return self

    def for_task(self, index: int) -> Self:
        """Return the options for one task, with `base` (for task 0) and `length_factor` applied."""
        options = self.model_dump(exclude={"base"})
        if index == 0:
            if "epochs" in self.base:
                options["steps"] = None  # epochs for the base task override a general number of steps
            options |= self.base
        return type(self).model_validate(_apply_length(options))


def _apply_length(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options without `length_factor`, after scaling all numbers of epochs and steps by it."""
    factor: float = options.pop("length_factor")

    def scaled(count: int) -> int:
        return max(1, round(count * factor))

    for key in ("epochs", "steps", "decay_every"):
        options[key] = options[key] and scaled(options[key])
    return options | {"milestones": tuple(scaled(epoch) for epoch in options["milestones"])}


PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")


class RuntimeOptions(Options):
    """Where and in which precision a run computes; they change speed and rounding, not the experiment."""

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="device; auto: a GPU if any")
    devices: PositiveInt = Field(1, description="processes per machine, one per device; torchrun overrides it")
    num_nodes: PositiveInt = Field(1, description="number of machines")
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed"] = Field(
        "auto",
        description="float32, or mixed with bfloat16 or float16; auto: bfloat16 if the processor or GPU has units for "
        "it, else float32; $ETAG_PRECISION sets what auto means",
    )
    compile: bool = Field(False, description="use torch.compile: a minute at the start, faster steps")
    threads: PositiveInt | None = Field(
        None,
        description="CPU threads; null: one or all cores, whichever a short measurement finds faster, unless "
        "$OMP_NUM_THREADS is set",
    )
    checkpoint_seconds: NonNegativeFloat = Field(
        300.0, description="seconds between checkpoints within a phase; 0: as often as possible"
    )
    checkpoint_steps: PositiveInt | None = Field(
        None, description="also a checkpoint after every N steps (rounded up to tens)"
    )
    callbacks: tuple[str, ...] = Field((), description="by name: tensorboard, or those of a plug-in")
