"""YAML as people write it: `1e-3` is a number, and a key given twice is an error. Only plain values are read: texts,
numbers, lists and mappings, and not more of them than a recipe can need."""

import math
import re
from pathlib import Path
from typing import Any

import yaml

from etag.core.errors import EtagError
from etag.core.reading import read_text
from etag.core.text import brief

MAX_BYTES = 1 << 20  # of a file
MAX_NODES = 10_000  # keys and values, with all that aliases stand for
MAX_DEPTH = 40  # of lists and mappings inside each other, with what aliases stand for
MAX_DIGITS = 100  # of a number, before it is read
_HALF = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # halves of characters; the others stand for bytes of file names
PLAIN = ("null", "bool", "int", "float", "str", "seq", "map")


def _error(problem: str, node: Any) -> yaml.constructor.ConstructorError:
    """The error for a node or an event."""
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


class _Loader(yaml.SafeLoader):
    """A safe loader that reads `1e-3` as a number, refuses a key given twice, and counts what it reads."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = self._nodes = 0
        self._extents: dict[int, tuple[int, int]] = {}  # by identity of a composed node: its nodes, and its depth

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        is_alias = self.check_event(yaml.AliasEvent)
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        self._depth, before = self._depth + 1, self._nodes
        self._check_extent(1, 0, event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if not is_alias:
            depths = [self._extents[id(child)][1] for child in _children(node)]
            self._extents[id(node)] = self._nodes - before, 1 + max(depths, default=0)
        elif id(node) in self._extents:
            nodes, depth = self._extents[id(node)]
            self._check_extent(nodes - 1, depth, event)
        else:
            raise _error("an alias stands inside the value that it refers to", event)
        return node

    def _check_extent(self, nodes: int, depth: int, event: yaml.Event) -> None:
        """Count more nodes of this depth; raise an error if there are too many, or if they are too deep."""
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise _error(f"there are more than {MAX_NODES:,} values", event)
        if self._depth + depth > MAX_DEPTH:
            raise _error(f"lists and mappings are nested more than {MAX_DEPTH} deep", event)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, ArithmeticError) as error:
            raise _error(f"{brief(node.value)} is not of the type '{node.tag.rpartition(':')[2]}'", node) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        known: set[Any] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode):
                raise _error("a key must be a text or a number", key)
            if (name := self.construct_object(key)) in known:
                raise _error(f"{brief(name)} is given twice", node)
            known.add(name)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        if len(node.value) > MAX_DIGITS:
            raise _error("a number has too many digits", node)
        if node.tag.endswith("float"):
            return float(self.construct_yaml_float(node))
        value = int(self.construct_yaml_int(node))
        if not -(2**63) <= value < 2**63:
            raise _error("a number is too large", node)
        return value

    def construct_text(self, node: yaml.ScalarNode) -> str:
        text = str(self.construct_scalar(node))
        if "\0" in text or (not text.isascii() and _HALF.search(text)):
            raise _error(f"a text has a character that no file or folder can have: {brief(text)}", node)
        return text


def _children(node: yaml.Node | None) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that `_Loader` would read as numbers."""


# other tags have no constructor; dates, and the keys `<<` and `=`, are texts like any other
_TAGS = {f"tag:yaml.org,2002:{name}" for name in PLAIN}
_Loader.yaml_constructors = {
    tag: make for tag, make in yaml.SafeLoader.yaml_constructors.items() if tag in {None, *_TAGS}
}
_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in known if tag in _TAGS]
    for letter, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_number)
_Loader.add_constructor("tag:yaml.org,2002:str", _Loader.construct_text)
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$"), list("-+0123456789")
    )


def parse(text: str, origin: str) -> Any:
    """The value that a YAML text describes; an error message names `origin` as the place of the text."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: of a number in the head of a document
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise EtagError(f"{origin}{place} is not valid YAML: {problem}.") from error


def read(path: Path) -> dict[str, Any]:
    """The mapping that a file holds; anything else is an error that names the file."""
    return parse_mapping(read_text(path, MAX_BYTES), str(path))


def parse_mapping(text: str, origin: str) -> dict[str, Any]:
    """The mapping that a text describes; anything else is an error that names `origin`."""
    content = parse(text, origin)
    if not isinstance(content, dict):
        raise EtagError(f"{origin} must hold a mapping of option names to values.")
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
