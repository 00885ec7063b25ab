"""Registries: methods, backbones and data sources register themselves by name when their module is imported."""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from etag.core.errors import EtagError, unknown_name

T = TypeVar("T")

PLUGIN_PREFIX = "etag_plugin_"  # of the module name of a plug-in that is a file


class Registry(Generic[T]):
    """Items by name; on first use it imports every module of one package, which register their items."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self._package = package
        self._items: dict[str, T] = {}
        self._loaded = False

    def add(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers an object under `name`; a second object of that name is an error."""

        def register(item: T) -> T:
            if name in self._items and self._items[name] is not item:
                raise EtagError(f"two {self.kind}s have the name '{name}': rename one of them.")
            self._items[name] = item
            return item

        return register

    def __getitem__(self, name: str) -> T:
        self._load()
        if name not in self._items:
            raise unknown_name(self.kind, name, self)
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._items))

    def _load(self) -> None:
        if self._loaded:
            return
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self._package}.{module.name}")
        self._loaded = True  # set last, so that after a failed import the next lookup fails in the same way
