"""Class-incremental image learning that keeps no old data."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["run"]

if TYPE_CHECKING:
    from etag.app.api import run


def __getattr__(name: str) -> Any:
    # late, so that `etag --help` does not wait for torch
    if name == "run":
        from etag.app.api import run

        return run
    raise AttributeError(f"module 'etag' has no attribute '{name}'")
