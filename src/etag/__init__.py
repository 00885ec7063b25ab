"""Class-incremental image learning that keeps no old data."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["IncrementalClassifier", "run"]

if TYPE_CHECKING:
    from etag.app.api import run
    from etag.app.estimator import IncrementalClassifier

_HOMES = {"run": "etag.app.api", "IncrementalClassifier": "etag.app.estimator"}


def __getattr__(name: str) -> Any:
    # late, so that `etag --help` does not wait for torch
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'etag' has no attribute '{name}'")
