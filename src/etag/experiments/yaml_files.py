"""YAML as people write it: `1e-3` is a number, and a key given twice is an error."""

import math
import re
from pathlib import Path
from typing import Any

import yaml

from etag.core.errors import EtagError


class _Loader(yaml.SafeLoader):
    """A safe loader that reads `1e-3` as a number and refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"'{key}' is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that `_Loader` would read as numbers."""


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$"), list("-+0123456789")
    )


def parse(text: str, origin: str) -> Any:
    """The value that a YAML text describes; an error message names `origin` as the place of the text."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise EtagError(f"{origin}{place} is not valid YAML: {problem}.") from error


def read(path: Path) -> dict[str, Any]:
    """The mapping that a file holds; anything else is an error that names the file."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise EtagError(f"{path} cannot be read: {error}.") from error
    content = parse(text, str(path))
    if not isinstance(content, dict):
        raise EtagError(f"{path} must hold a mapping of option names to values.")
    return content


def write(value: dict[str, Any]) -> str:
    """The text of a mapping, one key per line, in the order of its keys."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def inline(value: Any) -> str:
    """The text of any value on one line, as `--set KEY=VALUE` reads it."""
    text = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, width=math.inf, sort_keys=False, allow_unicode=True
    )
    return text.removesuffix("...\n").strip()
