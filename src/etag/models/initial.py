"""Building networks whose initial weights come from a given random stream."""

import math
import os
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from etag.core.errors import EtagError

M = TypeVar("M", bound=nn.Module)


def _memory() -> float:
    """This machine's memory in bytes; infinity where the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return math.inf


def require_memory(network: nn.Module) -> None:
    """Raise an error if a network, which may be on the meta device, is larger than this machine's memory."""
    size = sum(tensor.nbytes for tensor in network.state_dict().values())
    if size > (memory := _memory()):  # an error now, because the system would kill the process later
        raise EtagError(
            f"a network of {size / 2**30:,.0f} GiB does not fit into this machine's {memory / 2**30:,.0f} GiB of "
            "memory: lower model.width or the number of classes, or choose smaller weights."
        )


def build(make: Callable[[], M], generator: torch.Generator) -> M:
    """Return the module that `make` creates, on the CPU. Its constructors initialize it, as usual in PyTorch, but the
    random numbers depend on `generator` alone, and the global generator is left as it was."""
    with torch.device("meta"):
        require_memory(make())
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return make()
