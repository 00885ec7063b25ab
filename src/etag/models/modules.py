"""General building blocks that PyTorch does not have."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from etag.models.convolution import Activation, activated, computed_dtype, convolution, convolved, zero_padded

M = TypeVar("M", bound=nn.Module)
BatchNorm = nn.modules.batchnorm._BatchNorm  # base class of BatchNorm1d, 2d and 3d


class Modules(nn.ModuleList, Generic[M]):
    """An nn.ModuleList whose items have a static type."""

    def __iter__(self) -> Iterator[M]:
        return cast(Iterator[M], super().__iter__())


class StoredTensors(nn.Module):
    """Named tensors that are saved but not trained; loading a state dict may change their shapes."""

    def store(self, **tensors: Tensor) -> None:
        """Set or replace tensors by name."""
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name, buffer in self.named_buffers(recurse=False, remove_duplicate=False):
            if (saved := state_dict.get(prefix + name)) is not None:
                self.register_buffer(name, saved.to(buffer.device, copy=True))
        super()._load_from_state_dict(state_dict, prefix, *args)


class ConvNorm(nn.Sequential):
    """A convolution followed by BatchNorm and, if one is given, an activation. In evaluation mode convolution and
    BatchNorm are folded into one convolution: outputs and gradients are mathematically the same, without BatchNorm's
    own passes over the maps. Set `folds` to False to run BatchNorm as a layer, for instance to observe its input."""

    folds = True
    epsilon: ClassVar[float] = 1e-5  # of BatchNorm

    def __init__(
        self,
        channels: int,
        out: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        activation: Activation | None = None,
    ) -> None:
        conv = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")  # as He et al. (2016)
        super().__init__(conv, nn.BatchNorm2d(out, self.epsilon))
        self._activation = activation
        self._stored_folds: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized map, after the activation."""
        conv, norm = cast(nn.Conv2d, self[0]), cast(nn.BatchNorm2d, self[1])
        if norm.training or not self.folds:
            return activated(cast(Tensor, norm(self.convolved(x))), self._activation)
        weight, bias = self._folded(x)
        return convolution(x, self.placed(weight, x), bias, conv.stride, conv.groups, self._activation)

    def fold_once(self) -> None:
        """Fold the layer when it is used next, and then no more: from now on it does not change."""
        self._stored_folds = {}

    def _folded(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return kernel and bias of convolution and BatchNorm in one; those that are stored, if there are any."""
        if self._stored_folds is None or torch.compiler.is_compiling():
            return self._fold()
        key = (x.device, computed_dtype(x))
        if key not in self._stored_folds:
            with torch.inference_mode(mode=False), torch.no_grad():  # so that they can be used for gradients, too
                weight, bias = self._fold()
                self._stored_folds[key] = weight.to(key[1]), bias.to(key[1])
        return self._stored_folds[key]

    def _fold(self) -> tuple[Tensor, Tensor]:
        conv, norm = cast(nn.Conv2d, self[0]), cast(nn.BatchNorm2d, self[1])
        mean, variance = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
        scale = norm.weight * (variance + norm.eps).rsqrt()
        return conv.weight * scale.view(-1, 1, 1, 1), torch.addcmul(norm.bias, mean, scale, value=-1)

    def convolved(self, x: Tensor) -> Tensor:
        """Return the map after the convolution alone."""
        conv = cast(nn.Conv2d, self[0])
        if conv.groups == 1 or min(x.shape[2:]) >= conv.kernel_size[0]:
            padding = cast(tuple[int, ...], conv.padding)
            return convolved(x, conv.weight, None, conv.stride, padding, conv.groups)
        # the gradient of filters that are larger than the map takes PyTorch five times as long with its own padding
        zeros = conv.kernel_size[0] // 2
        return functional.conv2d(zero_padded(x, [zeros] * 4), conv.weight, None, conv.stride, 0, 1, conv.groups)

    def placed(self, weight: Tensor, x: Tensor) -> Tensor:  # noqa: ARG002
        """Return the kernel as it is applied to `x`, which is padded by half of the kernel's side at every edge."""
        return weight


def uses_batch_statistics(module: nn.Module) -> bool:
    """Return whether any BatchNorm layer in the module is in training mode, that is, uses batch statistics."""
    return any(isinstance(part, BatchNorm) and part.training for part in module.modules())


@contextmanager
def without_tracking(module: nn.Module) -> Iterator[None]:
    """Context manager: BatchNorm layers in training mode do not update their running statistics."""
    norms = [part for part in module.modules() if isinstance(part, BatchNorm)]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
