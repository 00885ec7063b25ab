"""Callbacks by name: `runtime.callbacks` turns them on; plug-ins register their own."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from etag.core.errors import unknown_name
from etag.core.work import Callback
from etag.engine.progress import TensorBoardLog

CALLBACKS: dict[str, Callable[[Path], Callback]] = {
    "tensorboard": lambda folder: TensorBoardLog(folder / "tensorboard")
}
F = TypeVar("F", bound=Callable[[Path], Callback])


def callback(name: str) -> Callable[[F], F]:
    """Decorator: register a callback class, which is created with the run directory."""

    def register(create: F) -> F:
        CALLBACKS[name] = create
        return create

    return register


def check_callbacks(names: Iterable[str]) -> None:
    """Raise an error if there is no callback of one of these names."""
    for name in names:
        if name not in CALLBACKS:
            raise unknown_name("callback", name, CALLBACKS)


def create_callbacks(names: Iterable[str], folder: Path) -> list[Callback]:
    """The callbacks of these names for a run or model directory."""
    check_callbacks(names)
    return [CALLBACKS[name](folder) for name in names]


@contextmanager
def closing_all(callbacks: Iterable[Callback]) -> Iterator[None]:
    """Close the callbacks at the end, however it comes."""
    try:
        yield
    finally:
        for each in callbacks:
            each.close()
