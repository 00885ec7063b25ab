"""Building networks whose initial weights come from a given random generator."""

import math
import os
from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import nn

from etag.core.errors import EtagError

M = TypeVar("M", bound=nn.Module)


@runtime_checkable
class SelfInitializing(Protocol):
    """A module that initializes its own parameters, as opposed to a convolution, linear or BatchNorm layer."""

    def initialize(self, generator: torch.Generator) -> None:
        """Initialize its own parameters in place; its child modules are initialized separately."""


def _memory() -> float:
    """This machine's memory in bytes; infinity where the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return math.inf


def build(make: Callable[[], M], generator: torch.Generator) -> M:
    """Return the module that `make` creates, on the CPU, initialized from `generator` alone."""
    with torch.device("meta"):
        module = make()
    size = sum(tensor.nbytes for tensor in module.state_dict().values())
    if size > (memory := _memory()):  # an error now, because the system would kill the process later
        raise EtagError(
            f"a network of {size / 2**30:,.0f} GiB does not fit into this machine's {memory / 2**30:,.0f} GiB of "
            "memory: lower model.width or the number of classes."
        )
    module.to_empty(device="cpu")
    for part in module.modules():
        _initialize(part, generator)
    return module


def _initialize(module: nn.Module, generator: torch.Generator) -> None:
    if isinstance(module, SelfInitializing):
        module.initialize(generator)
    elif isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=generator)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Linear):
        bound = 1 / math.sqrt(module.in_features)
        nn.init.uniform_(module.weight, -bound, bound, generator=generator)
        if module.bias is not None:
            nn.init.uniform_(module.bias, -bound, bound, generator=generator)
    elif isinstance(module, nn.BatchNorm2d):
        module.reset_parameters()
    elif any(tensor.numel() for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))):
        raise TypeError(f"{type(module).__name__} has parameters or buffers but no initialize(generator)")
