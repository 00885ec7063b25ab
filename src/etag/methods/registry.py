"""The methods by name. `eXX` is XX with embedding distillation, and is created automatically."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from etag.core.registry import Registry
from etag.methods.base import AnyMethod, MethodInfo


class MethodRegistry(Registry[type[AnyMethod]]):
    """Methods and their variants with embedding distillation."""

    def __init__(self) -> None:
        super().__init__("method", "etag.methods")
        self._e_variants: dict[str, type[AnyMethod]] = {}

    def __getitem__(self, name: str) -> type[AnyMethod]:
        if name[:1] == "e" and name not in self._names() and name[1:] in self._with_e_variant():
            if name not in self._e_variants:
                self._e_variants[name] = _new_e_variant(name, super().__getitem__(name[1:]))
            return self._e_variants[name]
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted([*self._names(), *(f"e{name}" for name in self._with_e_variant())]))

    def _names(self) -> list[str]:
        return list(super().__iter__())

    def _with_e_variant(self) -> list[str]:
        """The names XX for which there is an eXX."""
        methods = {name: super(MethodRegistry, self).__getitem__(name) for name in self._names()}
        return [name for name, cls in methods.items() if cls.has_e_variant]


METHODS = MethodRegistry()
C = TypeVar("C", bound=type[AnyMethod])


def method(name: str, info: MethodInfo, sections: Sequence[str] = ()) -> Callable[[C], C]:
    """Decorator: register a method under its name. Without `sections`, `resolve` applies the recipe sections
    (`methods.NAME`) and `changed_defaults` of the parent class, then those of the method. With `sections`, it applies
    the recipe sections named there, in that order, and no `changed_defaults` but the method's own."""

    def register(cls: C) -> C:
        own = (name, cls.Options.changed_defaults)
        if sections:
            cls.recipe_sections = tuple(own if key == name else (key, {}) for key in sections)
        else:
            cls.recipe_sections = (*cls.recipe_sections, own)
        cls.info, cls.name = info, name
        METHODS.add(name)(cls)
        return cls

    return register


def variant(parent: type[AnyMethod], name: str, info: MethodInfo, changed_defaults: dict[str, Any]) -> type[AnyMethod]:
    """The same method with other defaults, under another name."""
    members: dict[str, Any] = {"__doc__": info.summary, "__module__": parent.__module__}
    own = members | {"changed_defaults": changed_defaults}
    members |= {"Options": type(f"{parent.Options.__name__}_{name}", (parent.Options,), own)}
    members |= {"info": info, "name": name, "has_e_variant": False}
    members |= {"recipe_sections": (*parent.recipe_sections, (name, changed_defaults))}
    created: type[AnyMethod] = type(f"{parent.__name__}_{name}", (parent,), members)
    return created


def _new_e_variant(name: str, parent: type[AnyMethod]) -> type[AnyMethod]:
    info = replace(
        parent.info,
        title=f"e{parent.info.title}",
        summary=f"{parent.info.summary}; with embedding distillation",
        source=f"{parent.info.source}; the eTag paper",
        stores=f"{parent.info.stores}; auxiliary classifiers of the base classes",
    )
    created = variant(parent, name, info, {"embedding": {}})
    created.is_e_variant = True
    return created
