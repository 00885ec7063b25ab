"""Modules that PyTorch does not have."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)
BatchNorm = nn.modules.batchnorm._BatchNorm  # the base of all kinds


class Modules(nn.ModuleList, Generic[M]):
    """nn.ModuleList, typed."""

    def __iter__(self) -> Iterator[M]:
        return cast(Iterator[M], super().__iter__())


class Kept(nn.Module):
    """Tensors that are kept, not trained. They take the size of what is loaded into them."""

    def keep(self, **tensors: Tensor) -> None:
        """Replace some or all of them."""
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name, buffer in self.named_buffers(recurse=False):
            if (found := state_dict.get(prefix + name)) is not None:
                self.register_buffer(name, found.to(buffer.device, copy=True))
        super()._load_from_state_dict(state_dict, prefix, *args)


def follows_data(module: nn.Module) -> bool:
    """Whether any BatchNorm in it takes its statistics from the batch at hand."""
    return any(isinstance(part, BatchNorm) and part.training for part in module.modules())


@contextmanager
def untracked(module: nn.Module) -> Iterator[None]:
    """Within, BatchNorm in training normalises by the batch without taking note of it."""
    norms = [part for part in module.modules() if isinstance(part, BatchNorm)]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
