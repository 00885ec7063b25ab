"""Reading pickles of plain values and byte arrays, such as CIFAR-100's, without importing or calling what they name."""

import math
import pickletools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

MOST_OPCODES = 500_000  # the largest file of CIFAR-100 has about 200,000
RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")  # before NumPy 2, and since
NAMES = (*RECONSTRUCT, "numpy ndarray", "numpy dtype", "_codecs encode")
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


class RefusedPickle(Exception):
    """The pickle holds something other than plain values and byte arrays; the text says what."""


@dataclass
class ByteArray:
    """A NumPy array of uint8 in a pickle."""

    shape: tuple[int, ...] = (0,)
    data: bytes = b""

    def to_numpy(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the array, as a copy that may be changed."""
        return np.frombuffer(self.data, np.uint8).reshape(self.shape).copy()


@dataclass(frozen=True)
class _Name:
    text: str


class _Uint8:
    """The data type of a byte array."""


def read_pickle(content: bytes) -> Any:
    """Return the value in a pickle: text, bytes, whole numbers, booleans, None, and lists, tuples and dicts of these,
    whose keys are text or bytes; an array of uint8 is a `ByteArray`. Anything else raises an exception."""
    opcodes: Iterable[tuple[pickletools.OpcodeInfo, Any, Any]] = pickletools.genops(content)
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    for count, (opcode, argument, _) in enumerate(opcodes):
        if count == MOST_OPCODES:
            raise RefusedPickle(f"it has more than {MOST_OPCODES:,} opcodes")
        # `stack_before` describes what the opcode takes from the stack: values, or all from the last mark
        takes = opcode.stack_before
        if pickletools.markobject in takes:
            start = marks.pop() - takes.index(pickletools.markobject)
        else:
            start = len(stack) - len(takes)
        taken = stack[start:]
        del stack[start:]
        match opcode.name, taken:
            case "BININT1" | "BININT2" | "BININT" | "INT" | "LONG1", []:
                stack.append(argument)
            case "SHORT_BINSTRING" | "BINSTRING", []:  # Python 2's texts, which `pickletools` decodes
                stack.append(argument.encode("latin-1"))
            case "SHORT_BINBYTES" | "BINBYTES" | "SHORT_BINUNICODE" | "BINUNICODE" | "UNICODE", []:
                stack.append(argument)
            case "PROTO" | "FRAME", []:
                pass
            case "STOP", [value]:
                return value
            case "MARK", []:
                marks.append(len(stack))
            case "PUT" | "BINPUT" | "LONG_BINPUT", [] if stack:
                memo[argument] = stack[-1]
            case "MEMOIZE", [value]:
                memo[len(memo)] = value
                stack.append(value)
            case "GET" | "BINGET" | "LONG_BINGET", [] if argument in memo:
                stack.append(memo[argument])
            case "NONE" | "NEWTRUE" | "NEWFALSE", []:
                stack.append(CONSTANTS[opcode.name])
            case "EMPTY_TUPLE" | "TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3", values:
                stack.append(tuple(values))
            case "EMPTY_LIST" | "LIST", values:
                stack.append(values)
            case "APPEND" | "APPENDS", [list() as items, *values]:
                items.extend(values)
                stack.append(items)
            case "EMPTY_DICT" | "DICT", values:
                stack.append(_pairs(values))
            case "SETITEM" | "SETITEMS", [dict() as items, *values]:
                items.update(_pairs(values))
                stack.append(items)
            case "GLOBAL", []:
                stack.append(_name(argument))
            case "STACK_GLOBAL", [str() as module, str() as name]:
                stack.append(_name(f"{module} {name}"))
            case "REDUCE", [_Name("_codecs encode"), (str() as text, "latin1")]:  # Python 3's bytes in old protocols
                stack.append(text.encode("latin-1"))
            case "REDUCE", [_Name("numpy dtype"), ("u1" | b"u1", 0, 1)]:
                stack.append(_Uint8())
            case "BUILD", [_Uint8() as dtype, (3, "|" | b"|", None, None, None, -1, -1, 0)]:
                stack.append(dtype)
            case "REDUCE", [_Name(name), (_Name("numpy ndarray"), (0,), "b" | b"b")] if name in RECONSTRUCT:
                stack.append(ByteArray())
            case "BUILD", [ByteArray() as array, (1, tuple() as shape, _Uint8(), 0, bytes() as data)]:
                if not all(type(side) is int and side >= 0 for side in shape) or math.prod(shape) != len(data):
                    raise RefusedPickle(f"it has an array of the shape {shape} with {len(data):,} bytes")
                array.shape, array.data = shape, data
                stack.append(array)
            case name, _:
                raise RefusedPickle(f"it has an unexpected {name}")
    raise RefusedPickle("it has no end")


def _name(text: str) -> _Name:
    if text not in NAMES:
        raise RefusedPickle(f"it refers to {text.replace(' ', '.', 1)}, which CIFAR-100 does not need")
    return _Name(text)


def _pairs(values: list[Any]) -> dict[str | bytes, Any]:
    # other keys could be made to collide, which makes a dict endlessly slow
    keys = values[::2]
    if not all(isinstance(key, str | bytes) for key in keys):
        raise RefusedPickle("it has a dict whose keys are not texts")
    return dict(zip(keys, values[1::2], strict=True))
