"""A list of modules that knows what it holds."""

from collections.abc import Iterator
from typing import Generic, TypeVar, cast

from torch import nn

M = TypeVar("M", bound=nn.Module)


class Modules(nn.ModuleList, Generic[M]):
    """nn.ModuleList, typed."""

    def __iter__(self) -> Iterator[M]:
        return cast(Iterator[M], super().__iter__())
