"""Write docs/options.md: every option with its type, default and meaning, from the option classes themselves.

python tools/options_page.py           writes the page
python tools/options_page.py --check   exits with 1 if the page on disk is not current
"""

import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from etag.core.options import TrainOptions
from etag.experiments.config import RunConfig
from etag.methods.parts.fidelity import FidelityOptions
from etag.methods.registry import METHODS

PAGE = Path(__file__).parents[1] / "docs" / "options.md"
INTRODUCTION = """# Options

Every option by its dotted key, as `--set KEY=VALUE`, a recipe or `etag.run(settings={...})` takes it. This page is
written by `python tools/options_page.py` from the option classes; a test keeps it current.

A default of `null` means that the option is off or follows from something else, as its meaning says. Where a method
changes a default, its section says so. Options of training (`train` and every group of type *training*) are listed
once, under [train](#train).
"""


def groups_in(annotation: Any) -> list[type[BaseModel]]:
    """The option classes that a field may hold."""
    if get_origin(annotation) is Annotated:
        return groups_in(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [group for member in get_args(annotation) for group in groups_in(member)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []


def type_text(annotation: Any) -> str:
    """A type as users read it."""
    origin, members = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_text(members[0])
    if origin is Literal:
        return ", ".join(f"`{member}`" for member in members)
    if origin in (Union, types.UnionType):
        return " or ".join("null" if member is type(None) else type_text(member) for member in members)
    if origin is tuple:
        return "list"
    names = {int: "integer", float: "number", bool: "true or false", str: "text", dict: "mapping"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def default_text(value: Any) -> str:
    """A default as one would write it in YAML."""
    if isinstance(value, BaseModel):
        return ""
    return f"`{json.dumps(value)}`" if value is not ... else "required"


def rows(
    group: type[BaseModel], prefix: str, skip: frozenset[str] = frozenset()
) -> Iterator[tuple[str, str, str, str]]:
    """Key, type, default and meaning of every option in a group and the groups inside it."""
    for name, field in group.model_fields.items():
        if name in skip:
            continue
        key, description = f"{prefix}{name}", field.description or ""
        inside = groups_in(field.annotation)
        default = field.get_default(call_default_factory=True) if not field.is_required() else ...
        if not inside:
            yield key, type_text(field.annotation), default_text(default), description
        elif any(issubclass(kind, TrainOptions) for kind in inside):
            changed = _changed_defaults(inside[0])
            others = "".join(f" or `{kind.model_fields['kind'].default}`" for kind in inside[1:])
            words = f"training{others}" + (" or null" if default is None else "")
            yield key, words, _nothing(default), description + changed
        else:
            for kind in inside:
                if "kind" in kind.model_fields:
                    yield f"{key} (`{kind.model_fields['kind'].default}`)", "group", "", kind.__doc__ or ""
                elif default is None:
                    yield key, "group or null", "`null`", description
                yield from rows(kind, f"{key}.")


def _nothing(default: Any) -> str:
    return "`null`" if default is None else ""


def _changed_defaults(group: type[BaseModel]) -> str:
    """The defaults in which a training group differs from `train`."""
    plain = TrainOptions()
    own = group()
    changed = {
        name: getattr(own, name) for name in TrainOptions.model_fields if getattr(own, name) != getattr(plain, name)
    }
    words = ", ".join(f"{name} {json.dumps(value)}" for name, value in changed.items() if name != "validation")
    return f" (defaults: {words})" if words else ""


def table(entries: Iterator[tuple[str, str, str, str]]) -> str:
    """A Markdown table."""
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key, kind, default, description in entries:
        cells = [key if "`" in key else f"`{key}`", kind, default, description.strip().rstrip(".")]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines)


def method_keys(name: str) -> list[str]:
    """The keys under `method.` of a method with its default generator; those of the group fidelity are left out."""
    options = METHODS[name].Options
    found = []
    for key, _, _, _ in rows(options, "method."):
        if "fidelity" in key or " (" in key:
            continue
        found.append(key)
    generators = groups_in(options.model_fields["generator"].annotation) if "generator" in options.model_fields else []
    for kind in generators[1:]:  # keys of other generators than the default one
        default = {f"method.generator.{field}" for field in generators[0].model_fields}
        found = [key for key in found if not (key in _keys(kind, "method.generator.") and key not in default)]
    return sorted(set(found))


def _keys(group: type[BaseModel], prefix: str) -> set[str]:
    return {key for key, _, _, _ in rows(group, prefix)}


def is_variant(name: str) -> bool:
    """Whether it is another method with other defaults (b0), and not a method of its own."""
    parent = METHODS[name].__mro__[1]
    return not METHODS[name].has_e_variant and hasattr(parent, "name")


def page() -> str:
    """The whole page."""
    shared = frozenset(METHODS["fine"].Options.__mro__[2].model_fields)  # of every method
    parts = [INTRODUCTION]
    run = RunConfig.model_fields
    plain = [name for name in run if not groups_in(run[name].annotation)]
    parts.append("## run\n\n" + table(row for row in rows(RunConfig, "") if row[0] in plain))
    for name in ("data", "model", "train", "runtime", "evaluation"):
        (group,) = groups_in(run[name].annotation)
        parts.append(f"## {name}\n\n{group.__doc__}\n\n{table(rows(group, f'{name}.'))}")
    base = METHODS["fine"].Options.__mro__[2]
    parts.append(f"## method\n\n{base.__doc__}\n\n{table(rows(base, 'method.'))}")
    for name in METHODS:
        method = METHODS[name]
        if method.is_e_variant or is_variant(name):
            continue
        if name == "gfr":
            parts.append(
                f"### gfr\n\nAs [etag](#etag), with other defaults: {_changed(method.Options.changed_defaults)}"
            )
            continue
        own = table(rows(method.Options, "method.", skip=shared))
        defaults = _redefined(method.Options, base) | method.Options.changed_defaults
        changed = f"\n\nOther defaults: {_changed(defaults)}" if defaults else ""
        parts.append(f"### {name}\n\n{method.info.summary}{changed}\n\n{own}")
    (fidelity,) = groups_in(METHODS["etag"].Options.model_fields["fidelity"].annotation)
    assert fidelity is FidelityOptions
    variants = [name for name in METHODS if not METHODS[name].is_e_variant and is_variant(name)]
    lines = [
        f"- `{name}`: {METHODS[name].info.summary} ({METHODS[name].__mro__[1].name} with "
        f"{_changed(METHODS[name].Options.changed_defaults)})"
        for name in variants
    ]
    parts.append("## Variants\n\n" + "\n".join(lines))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _changed(defaults: dict[str, Any]) -> str:
    words = {key: "on, with its defaults" if value == {} else json.dumps(value) for key, value in defaults.items()}
    return ", ".join(f"`{key}`: {text}" for key, text in words.items()) or "the same defaults"


def _redefined(options: type[BaseModel], base: type[BaseModel]) -> dict[str, Any]:
    """The simple options that a method has with another default than every method."""
    own, others = options.model_fields, base.model_fields
    same = [name for name in others if not groups_in(others[name].annotation) and not others[name].is_required()]
    return {name: own[name].default for name in same if own[name].default != others[name].default}


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text() != page() and f"{PAGE} is not current: run python tools/options_page.py")
    PAGE.write_text(page())
