"""The methods by name. `eXX` is XX with embedding distillation, whatever XX is: nobody has to write it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from etag.core.registry import Registry
from etag.methods.base import Method, MethodInfo


class MethodRegistry(Registry[type[Method]]):
    """Methods, and their e-variants."""

    def __init__(self) -> None:
        super().__init__("method", "etag.methods")
        self._embedded: dict[str, type[Method]] = {}

    def __getitem__(self, name: str) -> type[Method]:
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
        """Methods that are themselves no composition of another one."""
        return [name for name in self._names() if len(lineage(super(MethodRegistry, self).__getitem__(name))) == 1]


METHODS = MethodRegistry()
C = TypeVar("C", bound=type[Method])


def method(name: str, card: MethodInfo) -> Callable[[C], C]:
    """Decorator: register a method under its name."""

    def register(cls: C) -> C:
        cls.card, cls.info, cls.name = card, card, name
        METHODS.add(name)(cls)
        return cls

    return register


def variant(of: type[Method], name: str, card: MethodInfo, preset: dict[str, Any]) -> type[Method]:
    """The same method with other defaults; its own name decides nothing else."""
    about = {"__doc__": card.summary, "__module__": of.__module__}
    options = type(f"{of.Options.__name__}_{name}", (of.Options,), about | {"preset": preset})
    made: type[Method] = type(
        f"{of.__name__}_{name}", (of,), about | {"Options": options, "card": card, "info": card, "name": name}
    )
    return made


def _embedded(name: str, of: type[Method]) -> type[Method]:
    card = replace(
        of.card,
        summary=f"{of.card.summary}; with embedding distillation",
        source=f"{of.card.source}; the eTag paper",
        stores=f"{of.card.stores}; auxiliary classifiers of the base classes",
    )
    made = variant(of, name, card, {"embedding": {}})
    made.embeds = True
    return made


def lineage(of: type[Method]) -> list[type[Method]]:
    """What a method is a composition of, itself last: options for those are options for it."""
    return [cls for cls in reversed(of.__mro__) if "name" in cls.__dict__]
