"""The configuration of a run: a recipe, then command-line options, then single settings; later ones win."""

import os
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field, ValidationError, field_validator

from etag.core.errors import EtagError
from etag.core.options import Options, RuntimeOptions, merge
from etag.core.text import brief
from etag.data.scenario import parse_split
from etag.data.source import SOURCES, DataOptions
from etag.experiments import plugins, recipes, yaml_files
from etag.learner.callbacks import check_callbacks
from etag.learner.config import LearnerConfig
from etag.learner.pretrained import complete
from etag.methods.registry import METHODS
from etag.models.backbone import BACKBONES

MAX_PARTS, MAX_KEY = 20, 200  # of a dotted key: parts, and letters that a message repeats
MAX_MISTAKES = 10  # in one error message


class EvaluationOptions(Options):
    """What a run saves of its evaluations besides the metrics."""

    features: Literal["none", "last", "every"] = Field(
        "last", description="save test features for t-SNE: never, after the last task, after each"
    )


class RunConfig(LearnerConfig):
    """All choices of a run. The defaults are the paper's protocol, on the smallest data and split."""

    data: DataOptions = Field(DataOptions(), description="the images")
    split: str = Field("b5-5x1", description="classes per task: b50-5x10 is 50 base classes, then 5 tasks of 10")
    runtime: RuntimeOptions = Field(RuntimeOptions(), description="where and in which precision it computes")
    evaluation: EvaluationOptions = Field(EvaluationOptions(), description="what is saved of the evaluations")
    plugins: list[str] = Field(default_factory=list, description="Python files that register methods and the like")

    @field_validator("split")
    @classmethod
    def _has_the_form_of_a_split(cls, split: str) -> str:
        parse_split(split)  # raises an error of its own
        return split


def resolve(
    recipe: str | None = None,
    given: dict[str, Any] | None = None,
    settings: Sequence[str] = (),
    preset: str | None = None,
) -> RunConfig:
    """Combine recipe, preset and settings into a checked configuration. `given` holds values by dotted key; `settings`
    are KEY=VALUE texts. Without a recipe, the one named after the data source is used, if there is one. The `methods`
    section of a recipe holds settings for single methods, which apply to their variants too (those of ewc to eewc). A
    preset changes any recipe; its `with_embedding` section is for methods with embedding distillation. Plug-ins that a
    recipe, a preset or a setting names must be loaded already: see `plugins.check_loaded`."""
    overrides: dict[str, Any] = {}
    for key, value in [*(given or {}).items(), *map(_setting, settings)]:
        _put(overrides, "method.name" if key == "method" else "data.name" if key == "data" else key, value)
    plugins.load()
    data = _resolve_source(overrides.get("data", {}))
    content = recipes.load(recipe) if recipe else recipes.default_for(data)
    plugins.check_loaded(content.get("plugins", []))  # first, as they may define the method
    for key in ("method", "data"):  # `method: etag` is short for `method: {name: etag}`
        if isinstance(content.get(key), str):
            content[key] = {"name": content[key]}
    per_method = _mapping(content.pop("methods", None), "methods")
    method = _mapping(content.pop("method", None), "method")
    name = merge(method, overrides.get("method", {})).get("name", "etag")
    if not isinstance(name, str):
        raise EtagError(f"the name of a method is a text, but {brief(name)} was given.")
    for section, changed_defaults in METHODS[name].recipe_sections:
        content = merge(content, {"method": changed_defaults})
        content = merge(content, _mapping(per_method.get(section), f"methods.{section}"))
    content = merge(content, {"method": method | {"name": name}})
    if preset is not None:
        changes = recipes.preset(preset)
        with_embedding = _mapping(changes.pop("with_embedding", None), "with_embedding")
        if merge(content, overrides)["method"].get("embedding") is not None:
            changes = merge(changes, with_embedding)
        content = merge(content, changes)
    plugins.check_loaded(content.get("plugins", []))  # before the list of the command line replaces this one
    return validate(merge(content, overrides))


def _mapping(value: Any, key: str) -> dict[str, Any]:
    """A section of a recipe; an empty section is an empty mapping."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise EtagError(f"the recipe's section '{key}' should hold keys and values, but is {brief(value)}.")
    return value


def _resolve_source(data: dict[str, Any]) -> str:
    """The name of the data source. If it is a folder, `data` is changed to the source `folder` with this path."""
    name = str(data.get("name", DataOptions().name))
    if name not in SOURCES and os.path.isdir(os.path.expanduser(name)):
        data |= {"name": "folder", "path": name}
        return "folder"
    return name


def validate(values: dict[str, Any]) -> RunConfig:
    """A checked configuration; the error names every mistake in it."""
    if values.get("plugins"):
        values = values | {"plugins": plugins.check_loaded(values["plugins"])}
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        mistakes = error.errors()
        more = f"; and {len(mistakes) - MAX_MISTAKES} more" if len(mistakes) > MAX_MISTAKES else ""
        told = "; ".join(_explain(item, values) for item in mistakes[:MAX_MISTAKES])
        raise EtagError(f"{told}{more}.") from None
    _ = SOURCES[config.data.name]  # raises an error if the name is unknown
    if config.model.backbone != "auto":
        _ = BACKBONES[config.model.backbone]
    check_callbacks(config.runtime.callbacks)
    return config.model_copy(update={"model": complete(config.model)})


def _setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise EtagError(f"--set takes KEY=VALUE, such as train.epochs=5, but was given {brief(text)}.")
    return key.strip(), yaml_files.parse(value, f"--set {key[:MAX_KEY]}")


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    if len(path) >= MAX_PARTS:
        raise EtagError(f"the key {brief(key)} has too many parts: there is no such option.")
    for part in path:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise EtagError(f"'{key}' cannot be set: '{part}' is a single value, not a group of options.")
    tree[last] = value


def _explain(error: Any, values: dict[str, Any]) -> str:
    path = [str(part) for part in error["loc"]]
    _, written = _walk(path, values)
    key = ".".join(written)[:MAX_KEY]
    if error["type"] == "extra_forbidden":
        group, _ = _walk(path[:-1], values)
        allowed = sorted(group.model_fields)
        near = get_close_matches(path[-1], allowed, n=1)
        hint = f"did you mean '{near[0]}'? Allowed" if near else "allowed"
        return f"unknown option '{key}': {hint} are {', '.join(allowed)}"
    message = error["msg"].removeprefix("Value error, ")
    given = ":" if isinstance(error["input"], dict) else f" cannot be {brief(error['input'])}:"
    return f"option '{key}'{given} {message[0].lower()}{message[1:]}"


def _walk(path: list[str], values: dict[str, Any]) -> tuple[type[BaseModel], list[str]]:
    """The option group at a path, and the path as users write it: without the `kind` that pydantic adds."""
    group: type[BaseModel] = RunConfig
    kinds: dict[str, type[BaseModel]] = {}
    written = []
    for part in path:
        if part in kinds:
            group = kinds[part]
            continue
        written.append(part)
        if group is RunConfig and part == "method":
            group = METHODS[values["method"]["name"]].Options
        elif part in group.model_fields:
            annotation = group.model_fields[part].annotation
            members = [kind for kind in get_args(annotation) or (annotation,) if isinstance(kind, type)]
            groups = [kind for kind in members if issubclass(kind, BaseModel)]
            kinds = {kind.model_fields["kind"].default: kind for kind in groups if "kind" in kind.model_fields}
            group = groups[0] if groups else group
    return group, written
