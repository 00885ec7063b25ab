"""Half and single precision."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)
P = ParamSpec("P")
R = TypeVar("R")


def at_least_single(value: Tensor) -> Tensor:
    """In single precision if it is in half, else as it is: for what is computed outside of autocast."""
    return value.float() if value.dtype in HALF else value


def in_single_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function of tensors compute in single precision under autocast, too: for what half precision is too coarse
    for. Tensors in half precision, also those in lists, are converted; without autocast nothing changes."""

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        device = next((tensor.device.type for tensor in _tensors([*args, *kwargs.values()])), "cpu")
        if not torch.is_autocast_enabled(device):
            return function(*args, **kwargs)
        with torch.autocast(device, enabled=False):
            converted: Any = [_converted(value) for value in args]
            named: Any = {name: _converted(value) for name, value in kwargs.items()}
            return function(*converted, **named)

    return wrapper


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _converted(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_converted(each) for each in value]
    return at_least_single(value) if isinstance(value, Tensor) else value
