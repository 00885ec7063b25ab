"""YAML as people write it: `1e-3` is a number, and a key given twice is a mistake."""

import re
from pathlib import Path
from typing import Any

import yaml

from etag.core.errors import EtagError


class _Loader(yaml.SafeLoader):
    """Safe, with the two corrections."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"'{key}' is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def parse(text: str, origin: str) -> Any:
    """The value that a text stands for; `origin` says where it came from, for the error."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise EtagError(f"{origin}{place} is not valid YAML: {problem}.") from error


def read(path: Path) -> dict[str, Any]:
    """A file that holds a mapping."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise EtagError(f"{path} cannot be read: {error}.") from error
    content = parse(text, str(path))
    if not isinstance(content, dict):
        raise EtagError(f"{path} must hold a mapping of option names to values.")
    return content


def write(value: dict[str, Any]) -> str:
    """The text of a mapping, keys in their order."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
