"""Modules that PyTorch does not have."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

M = TypeVar("M", bound=nn.Module)
BatchNorm = nn.modules.batchnorm._BatchNorm  # the base of all kinds


class Modules(nn.ModuleList, Generic[M]):
    """nn.ModuleList, typed."""

    def __iter__(self) -> Iterator[M]:
        return cast(Iterator[M], super().__iter__())


class StoredTensors(nn.Module):
    """Tensors that are kept, not trained. They take the size of what is loaded into them."""

    def store(self, **tensors: Tensor) -> None:
        """Replace some or all of them."""
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name, buffer in self.named_buffers(recurse=False, remove_duplicate=False):
            if (found := state_dict.get(prefix + name)) is not None:
                self.register_buffer(name, found.to(buffer.device, copy=True))
        super()._load_from_state_dict(state_dict, prefix, *args)


class ConvNorm(nn.Sequential):
    """A convolution and the BatchNorm behind it. While the statistics stand still the two are one convolution.

    That is the same mathematics, for gradients too, without BatchNorm's own passes over the maps. Who wants to
    look at what enters BatchNorm sets `folds` to False.
    """

    folds = True

    def __init__(self, channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        convolution = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """The normalized map."""
        conv, norm = cast(nn.Conv2d, self[0]), cast(nn.BatchNorm2d, self[1])
        if norm.training or not self.folds:
            return cast(Tensor, norm(conv(x)))
        mean, variance = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
        scale = norm.weight * (variance + norm.eps).rsqrt()
        weight, bias = conv.weight * scale.view(-1, 1, 1, 1), norm.bias - mean * scale
        return functional.conv2d(x, weight, bias, conv.stride, conv.padding, conv.dilation, conv.groups)


def uses_batch_statistics(module: nn.Module) -> bool:
    """Whether any BatchNorm in it takes its statistics from the batch at hand."""
    return any(isinstance(part, BatchNorm) and part.training for part in module.modules())


@contextmanager
def without_tracking(module: nn.Module) -> Iterator[None]:
    """Within, BatchNorm in training normalizes by the batch without taking note of it."""
    norms = [part for part in module.modules() if isinstance(part, BatchNorm)]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


LEAST_DEVIATION = 0.1  # smallest deviation that is used, as a share of the mean deviation


class FeatureScale(StoredTensors):
    """Shifts and scales features to zero mean and unit variance over the images it was fitted to."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features
        self.store(mean=torch.zeros(features), deviation=torch.ones(features))

    def fit(self, features: Tensor) -> None:
        """Take mean and deviation from features; a feature that hardly varies is not blown up, because it may vary
        in a later task."""
        deviation = features.std(0, correction=0)
        least = LEAST_DEVIATION * deviation.mean()
        self.store(mean=features.mean(0), deviation=deviation.clamp(min=least) if least > 0 else deviation + 1)

    def forward(self, features: Tensor) -> Tensor:
        """The scaled features."""
        return (features - self.mean) / self.deviation
