"""Class-incremental image learning that stores no old images."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["EtagError", "IncrementalClassifier", "run"]

if TYPE_CHECKING:
    from etag.app.api import run
    from etag.app.estimator import IncrementalClassifier
    from etag.core.errors import EtagError

_MODULES = {"run": "etag.app.api", "IncrementalClassifier": "etag.app.estimator", "EtagError": "etag.core.errors"}


def __getattr__(name: str) -> Any:
    # late, so that `etag --help` does not wait for torch
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'etag' has no attribute '{name}'")
