"""Titles, colors and markers, the same in every figure and on every page."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

from matplotlib import colormaps
from matplotlib.colors import is_color_like, to_hex
from matplotlib.font_manager import findfont, get_font

from etag.methods.base import MethodInfo
from etag.methods.registry import METHODS

# the colors of Okabe and Ito, which people with any common color blindness can distinguish
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GRAY, SILVER, WINE = "#737373", "#A6A6A6", "#882255"

CLASS_COLORS = (BLUE, VERMILION, GREEN, PURPLE, SKY, ORANGE, BLACK, YELLOW, SILVER, WINE)
LINE_COLORS = (BLUE, GREEN, PURPLE, ORANGE, SKY)  # yellow is too faint for lines
SPARE_COLORS = (*LINE_COLORS, WINE)  # of methods without a color of their own
LINE_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
CLASS_MARKERS = ("o", "^")
CLASSES_WITH_OWN_STYLE = len(CLASS_COLORS) * len(CLASS_MARKERS)  # more cannot be distinguished


@dataclass(frozen=True)
class Style:
    """How one line or one group of points is drawn."""

    color: str
    marker: str = "o"
    line: str = "-"

    @property
    def options(self) -> dict[str, Any]:
        """The options of matplotlib that draw a line in this style."""
        return {"color": self.color, "marker": self.marker, "linestyle": self.line}


def method_info(method: str) -> MethodInfo | None:
    """What the registered method says about itself; None if no method of this name is loaded."""
    return METHODS[method].info if method in METHODS else None


def method_title(method: str) -> str:
    """A method's title; "e" and the title of XX for eXX; the name itself if the method is unknown or has no title."""
    if is_e_variant(method):
        return f"e{method_title(method[1:])}"
    info = method_info(method)
    return (info.title if info else "") or method


def is_e_variant(method: str) -> bool:
    """Whether it is eXX: another method with embedding distillation added."""
    return method in METHODS and METHODS[method].is_e_variant


def uses_all_data(method: str) -> bool:
    """Whether it trains on the images of all tasks again, and so is an upper bound."""
    info = method_info(method)
    return info is not None and info.all_data


def method_styles(methods: Sequence[str]) -> list[Style]:
    """One style per method: its own color unless an earlier method has it, and no two alike while there are enough. eXX
    has the color of XX; its line is solid and that of XX is dashed. The lines of bounds that train on all data are
    dashed too."""
    # a method that is drawn again, as a variant, gets a color of its own
    bases = [_base(method, methods[:place].count(method)) for place, method in enumerate(methods)]
    distinct = list(dict.fromkeys(bases))
    colors = dict(zip(distinct, _colors(distinct), strict=True))
    with_variant = {method[1:] for method in methods if is_e_variant(method)}
    styles: list[Style] = []
    for place, (method, base) in enumerate(zip(methods, bases, strict=True)):
        dashed = method in with_variant or uses_all_data(method)
        style = Style(colors[base], line="--" if dashed else "-")
        markers = [LINE_MARKERS[(place + shift) % len(LINE_MARKERS)] for shift in range(len(LINE_MARKERS))]
        candidates = [replace(style, marker=marker, line=line) for line in (style.line, ":") for marker in markers]
        styles.append(next((one for one in candidates if one not in styles), candidates[0]))
    return styles


def _base(method: str, earlier: int) -> tuple[str, int]:
    """The key of a color: the method without e, and how often it was drawn before."""
    return (method[1:] if is_e_variant(method) else method, earlier)


def _colors(bases: Sequence[tuple[str, int]]) -> list[str]:
    own = [None if earlier else _own_color(method) for method, earlier in bases]
    colors: list[str] = []
    for place, color in enumerate(own):
        if color is None or color in colors:
            spare = SPARE_COLORS if color is None else LINE_COLORS
            free = [one for one in spare if one not in colors and one not in own]
            color = free[0] if free else color or SPARE_COLORS[place % len(SPARE_COLORS)]
        colors.append(color)
    return colors


def _own_color(method: str) -> str | None:
    info = method_info(method)
    color = info.color if info else None
    return color if color and is_color_like(color) else None  # a plug-in may say anything


def class_styles(classes: int) -> list[Style]:
    """Styles of up to `CLASSES_WITH_OWN_STYLE` classes."""
    return [Style(color, marker) for marker, color in product(CLASS_MARKERS, CLASS_COLORS)][:classes]


def task_styles(tasks: int) -> list[Style]:
    """Styles of any number of tasks, from dark (early) to light (late)."""
    scale = colormaps["viridis"]
    return [Style(to_hex(scale(0.95 * task / max(1, tasks - 1)))) for task in range(tasks)]


def short(text: str, limit: int) -> str:
    """One line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def drawable(name: str, number: int, limit: int) -> str:
    """A class name for a figure; its number if the font of the figures lacks one of its letters."""
    text = short(name, limit)
    return text if text and all(_has_glyph(letter) for letter in text) else str(number)


@cache
def _has_glyph(letter: str) -> bool:
    # matplotlib ships this font, so the result is the same on every machine
    return bool(get_font(findfont("DejaVu Sans")).get_char_index(ord(letter)))
