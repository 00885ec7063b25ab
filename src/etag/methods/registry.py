"""The methods by name. `eXX` is XX with embedding distillation, for any XX: nobody has to write it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from etag.core.registry import Registry
from etag.methods.base import AnyMethod, MethodInfo


class MethodRegistry(Registry[type[AnyMethod]]):
    """Methods and their variants with embedding distillation."""

    def __init__(self) -> None:
        super().__init__("method", "etag.methods")
        self._embedded: dict[str, type[AnyMethod]] = {}

    def __getitem__(self, name: str) -> type[AnyMethod]:
        if name[:1] == "e" and name not in self._names() and name[1:] in self._plain():
            if name not in self._embedded:
                self._embedded[name] = _embedded(name, super().__getitem__(name[1:]))
            return self._embedded[name]
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted([*self._names(), *(f"e{name}" for name in self._plain())]))

    def _names(self) -> list[str]:
        return list(super().__iter__())

    def _plain(self) -> list[str]:
        """Methods without embedding distillation of their own that are not variants of others."""
        methods = {name: super(MethodRegistry, self).__getitem__(name) for name in self._names()}
        return [name for name, cls in methods.items() if cls.has_embedded_variant]


METHODS = MethodRegistry()
C = TypeVar("C", bound=type[AnyMethod])


def method(name: str, info: MethodInfo, sections: Sequence[str] = ()) -> Callable[[C], C]:
    """Decorator: register a method under its name. `sections` names the sections of a recipe's `methods` that apply to
    it, in order; by default those of its parent class and its own."""

    def register(cls: C) -> C:
        own = (name, cls.Options.preset)
        cls.layers = tuple(own if key == name else (key, {}) for key in sections) or (*cls.layers, own)
        cls.info, cls.name = info, name
        METHODS.add(name)(cls)
        return cls

    return register


def variant(of: type[AnyMethod], name: str, info: MethodInfo, preset: dict[str, Any]) -> type[AnyMethod]:
    """The same method with other defaults, under another name."""
    members: dict[str, Any] = {"__doc__": info.summary, "__module__": of.__module__}
    options = type(f"{of.Options.__name__}_{name}", (of.Options,), members | {"preset": preset})
    members |= {"Options": options, "info": info, "name": name, "has_embedded_variant": False}
    created: type[AnyMethod] = type(f"{of.__name__}_{name}", (of,), members | {"layers": (*of.layers, (name, preset))})
    return created


def _embedded(name: str, of: type[AnyMethod]) -> type[AnyMethod]:
    info = replace(
        of.info,
        title=f"e{of.info.title}",
        summary=f"{of.info.summary}; with embedding distillation",
        source=f"{of.info.source}; the eTag paper",
        stores=f"{of.info.stores}; auxiliary classifiers of the base classes",
    )
    created = variant(of, name, info, {"embedding": {}})
    created.is_embedded = True
    return created
