"""Names, colors and marks, the same in every picture and on every page."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.font_manager import findfont, get_font

# Okabe and Ito: told apart with every common color blindness
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GRAY, SILVER, WINE = "#737373", "#A6A6A6", "#882255"

CLASS_COLORS = (BLUE, VERMILION, GREEN, PURPLE, SKY, ORANGE, BLACK, YELLOW, SILVER, WINE)
LINE_COLORS = (BLUE, GREEN, PURPLE, ORANGE, SKY)  # yellow is too faint for lines; the others are spoken for
LINE_MARKS = ("s", "^", "D", "v", "P", "X")
CLASS_MARKS = ("o", "^")
CLASSES_WITH_OWN_LOOK = len(CLASS_COLORS) * len(CLASS_MARKS)  # more cannot be told apart


@dataclass(frozen=True)
class Look:
    """How one thing is drawn."""

    color: str
    mark: str = "o"
    line: str = "-"


METHOD_NAMES = {
    "etag": "eTag",
    "fine": "Fine",
    "joint": "Joint",
    "gfr": "GFR",
    "lwf": "LwF",
    "lwm": "LwM",
    "ewc": "EWC",
    "mas": "MAS",
    "il2m": "IL2M",
    "lucir": "Lucir",
    "pass": "PASS",
    "podnet": "PODNet",
    "abd": "ABD",
    "dgr": "DGR",
    "bir": "BI-R",
    "gc": "GC",
    "tag": "Tag",
    **{f"b{number}": f"B{number}" for number in range(5)},
}

_SPARE_LOOKS = [Look(color, mark) for mark, color in product(LINE_MARKS, LINE_COLORS)]
OWN_LOOKS = {
    "etag": Look(VERMILION, "o"),
    "tag": Look(VERMILION, "s"),
    "fine": Look(GRAY, "v", ":"),
    "joint": Look(BLACK, "*", "--"),
}
METHOD_LOOKS = OWN_LOOKS | dict(
    zip([name for name in METHOD_NAMES if name not in OWN_LOOKS], _SPARE_LOOKS, strict=False)
)


def method_name(method: str) -> str:
    """A method as papers write it; eXX is XX with embedding distillation."""
    return f"e{METHOD_NAMES[method[1:]]}" if is_embedded(method) else METHOD_NAMES.get(method, method)


def is_embedded(method: str) -> bool:
    """Whether it is another method with embedding distillation, of those that papers name."""
    return method not in METHOD_NAMES and method[:1] == "e" and method[1:] in METHOD_NAMES


def method_looks(methods: Sequence[str]) -> list[Look]:
    """One look each: a well-known method has its own, unless its color is taken by one that comes before it; as long
    as there are colors no two are alike."""
    looks: list[Look] = []
    for method in methods:
        own, taken = METHOD_LOOKS.get(method), {look.color for look in looks}
        if own is not None and own.color not in taken:
            looks.append(own)
            continue
        reserved = taken | {METHOD_LOOKS[other].color for other in methods if other in METHOD_LOOKS}
        fresh = [look for look in _SPARE_LOOKS if look.color not in reserved]
        unlike = [look for look in [own, *_SPARE_LOOKS] if look is not None and look not in looks]
        looks.append([*fresh, *unlike, *_SPARE_LOOKS][0])
    return looks


def family_looks(methods: Sequence[str]) -> list[Look]:
    """As `method_looks`, but eXX has the color of XX: its line is whole, that of XX is broken."""
    plain = list(dict.fromkeys(method[1:] if is_embedded(method) else method for method in methods))
    looks = dict(zip(plain, method_looks(plain), strict=True))
    broken = {method[1:] for method in methods if is_embedded(method)}
    return [
        looks[method[1:]]
        if is_embedded(method)
        else replace(looks[method], line="--")
        if method in broken
        else looks[method]
        for method in methods
    ]


def class_looks(classes: int) -> list[Look]:
    """Looks for a few classes, which have no order."""
    pairs = [Look(color, mark) for mark, color in product(CLASS_MARKS, CLASS_COLORS)]
    return pairs[:classes]


def task_looks(tasks: int) -> list[Look]:
    """Looks for any number of tasks, from early (dark) to late (light)."""
    scale = colormaps["viridis"]
    return [Look(to_hex(scale(0.95 * task / max(1, tasks - 1)))) for task in range(tasks)]


def short(text: str, limit: int) -> str:
    """One line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def drawable(name: str, number: int, limit: int) -> str:
    """A class name for a picture; its number where the pictures' font lacks a letter."""
    text = short(name, limit)
    return text if text and all(_has_glyph(letter) for letter in text) else str(number)


@cache
def _has_glyph(letter: str) -> bool:
    # matplotlib brings this font along, so the answer is the same everywhere
    return bool(get_font(findfont("DejaVu Sans")).get_char_index(ord(letter)))
