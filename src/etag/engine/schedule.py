"""Learning-rate schedules: pure functions of the step, except the plateau, which observes the loss."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from etag.core.options import TrainOptions


def rate_factor(training: TrainOptions, step: int, steps_per_epoch: int, steps: int) -> float:
    """Factor on the learning rate at a step."""
    match training.schedule:
        case "step":
            return float(training.decay ** (step // steps_per_epoch // training.decay_every))
        case "milestones":
            return float(training.decay ** sum(step // steps_per_epoch >= epoch for epoch in training.milestones))
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * step / steps))
        case "onecycle":
            return _one_cycle(step, steps, training.warmup)
        case _:
            return 1.0


def _one_cycle(step: int, steps: int, warmup: float) -> float:
    """Half a cosine up from 1/25 to 1, half a cosine down to 1/250,000 (Smith's one-cycle policy)."""
    start, end, peak = 1 / 25, 1 / 250_000, max(1, round(warmup * steps))
    if step < peak:
        low, progress = start, 1 - step / peak
    else:
        low, progress = end, (step - peak) / max(1, steps - 1 - peak)
    return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * progress))


@dataclass
class Plateau:
    """Decays the rate when the loss stops falling, returns to the best weights, and ends at the smallest rate."""

    training: TrainOptions
    module: nn.Module
    factor: float = 1.0
    best: float = math.inf
    waited: int = 0
    best_weights: dict[str, Tensor] = field(default_factory=dict)

    def watch(self, loss: float) -> bool:
        """Record the loss of an epoch; returns False when training should end."""
        if loss < self.best:
            self.best, self.waited = loss, 0
            self.best_weights = {name: value.detach().clone() for name, value in self.module.state_dict().items()}
            return True
        self.waited += 1
        if self.waited < self.training.patience:
            return True
        self.waited, self.factor = 0, self.factor * self.training.decay
        self.restore()
        return self.factor * self.training.lr >= self.training.min_lr

    def state(self) -> dict[str, Tensor]:
        """The whole state as tensors."""
        numbers = {"factor": self.factor, "best": self.best, "waited": self.waited}
        best = {f"best.{name}": value for name, value in self.best_weights.items()}
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()} | best

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore the state."""
        self.factor, self.best, self.waited = (float(state[name]) for name in ("factor", "best", "waited"))  # type: ignore[assignment]
        self.best_weights = {name: value.clone() for name, value in with_prefix(state, "best.").items()}

    def restore(self) -> None:
        """Load the best weights."""
        if self.best_weights:
            self.module.load_state_dict(self.best_weights)


def with_prefix(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, named by the rest."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
