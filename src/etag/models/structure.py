"""The structure of networks as JSON values, so that a saved classifier can be built again without training code.

A `Rebuildable` class stores every argument of its constructor in an attribute of the same name: a JSON value, another
such module, or a list of these. An argument stored as nn.Parameter is left out: it is loaded with the weights.
"""

import inspect
from typing import Any

from torch import nn

from etag.models.modules import Modules

CLASSES: dict[str, type["Rebuildable"]] = {}


class Rebuildable(nn.Module):
    """A module that can be described by the arguments of its constructor. Every subclass is known by its name."""

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        CLASSES[cls.__name__] = cls


def describe(value: Any) -> Any:
    """A module, or a list of modules, as JSON values; other values are returned as they are."""
    if isinstance(value, Rebuildable):
        values = {name: getattr(value, name) for name in inspect.signature(type(value)).parameters}
        described = {name: describe(part) for name, part in values.items() if not isinstance(part, nn.Parameter)}
        return {"module": type(value).__name__} | described
    return [describe(part) for part in value] if isinstance(value, nn.ModuleList) else value


def build_empty(value: Any) -> Any:
    """The module that `describe` described, with the weights that its constructor leaves."""
    if isinstance(value, list) and any(isinstance(part, dict) for part in value):
        return Modules([build_empty(part) for part in value])
    if not isinstance(value, dict):
        return value
    name = value["module"]
    if name not in CLASSES:
        raise ValueError(f"unknown module '{name}': load the plug-in that defines it (--plugin FILE)")
    return CLASSES[name](**{key: build_empty(part) for key, part in value.items() if key != "module"})
