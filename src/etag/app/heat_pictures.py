"""Drawing a photo beside a heat map of it."""

import unicodedata
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.font_manager import findfont
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from etag.core.images import Resize
from etag.core.text import printable
from etag.report.style import drawable

Heat = np.ndarray[Any, np.dtype[np.float32]]
SIDE = 480  # the longer side of the photo in the picture, in pixels
GAP, MARGIN = 16, 20
LARGE, SMALL = 24, 15  # height of letters
INK, QUIET, PAPER = "#262626", "#737373", "#FFFFFF"
COLORS, STRENGTH, PALENESS = "inferno", 0.85, 0.3
LEGEND, BAR = "speaks for this class: little to much", (120, 12)  # width and height in pixels
LONGEST_NAME = 60


def draw(photo: Image.Image, heat: Heat, resize: Resize, name: str, number: int, probability: float) -> Image.Image:
    """The photo, beside it the same with a heat map over what the network saw of it, and below the class and its
    probability. `number` stands for a name that the font cannot write."""
    shown = _shown(photo)
    hot = _heated(shown, heat, resize)
    width = max(shown.width, 300)
    height = MARGIN + shown.height + GAP + LARGE + 8 + SMALL + MARGIN
    picture = Image.new("RGB", (2 * MARGIN + 2 * width + GAP, height), PAPER)
    for place, each in enumerate((shown, hot)):
        picture.paste(each, (MARGIN + place * (width + GAP) + (width - shown.width) // 2, MARGIN))
    _write(picture, MARGIN + shown.height + GAP, _caption(name, number), f"{probability:.1%}")
    return picture


def _shown(photo: Image.Image) -> Image.Image:
    """The photo at a legible size; few pixels stay visible as squares."""
    factor = SIDE / max(photo.size)
    size = max(1, round(photo.width * factor)), max(1, round(photo.height * factor))
    return photo.resize(size, Image.Resampling.NEAREST if factor >= 4 else Image.Resampling.LANCZOS)


def _heated(shown: Image.Image, heat: Heat, resize: Resize) -> Image.Image:
    """The photo in gray, colored where the heat is; what the network did not see is pale."""
    box = _seen(shown, resize)
    size = box[2] - box[0], box[3] - box[1]
    share = heat / heat.max() if heat.max() > 0 else heat
    smooth = np.asarray(Image.fromarray(share.astype(np.float32)).resize(size, Image.Resampling.BICUBIC)).clip(0, 1)
    gray = np.asarray(shown.convert("L").convert("RGB"), dtype=np.float32)
    result = Image.fromarray((255 - PALENESS * (255 - gray)).round().astype(np.uint8))
    result.paste(_colored(gray[box[1] : box[3], box[0] : box[2]], smooth), box)
    return result


def _seen(shown: Image.Image, resize: Resize) -> tuple[int, int, int, int]:
    """The part of the photo that the network saw: left, top, right and bottom."""
    width, height = resize.scaled_size(*shown.size)
    left, top = (width - resize.side) / 2 / width, (height - resize.side) / 2 / height
    across, down = round(left * shown.width), round(top * shown.height)
    return across, down, max(across + 1, shown.width - across), max(down + 1, shown.height - down)


def _write(picture: Image.Image, top: int, name: str, probability: str) -> None:
    """The caption: probability and name of the class, and what the colors mean."""
    pen, bold, large, small = ImageDraw.Draw(picture), _font(LARGE, bold=True), _font(LARGE), _font(SMALL)
    pen.text((MARGIN, top), probability, INK, bold)
    start = MARGIN + round(bold.getlength(probability)) + GAP
    while large.getlength(name) > picture.width - MARGIN - start:
        name = f"{name.removesuffix('…')[:-1]}…"
    pen.text((start, top), name, INK, large)
    pen.text((MARGIN, top + LARGE + 8), LEGEND, QUIET, small)
    bar = np.linspace(0, 1, BAR[0], dtype=np.float32)[None].repeat(BAR[1], 0)
    scale = _colored(np.full((*bar.shape, 3), 128, np.float32), bar)
    picture.paste(scale, (MARGIN + round(small.getlength(LEGEND)) + 10, top + LARGE + 8 + (SMALL - BAR[1]) // 2 + 1))


def _colored(gray: Heat, heat: Heat) -> Image.Image:
    """Gray pixels under the colors of heat between 0 and 1."""
    colors = 255 * colormaps[COLORS](0.15 + 0.8 * heat)[..., :3]
    opacity = STRENGTH * heat[..., None] ** 0.8
    return Image.fromarray(((1 - opacity) * gray + opacity * colors).round().astype(np.uint8))


def _caption(name: str, number: int) -> str:
    """The name of a class, or its number if the font lacks its letters, or would write them in the wrong order."""
    backwards = any(unicodedata.bidirectional(letter) in ("R", "AL", "AN") for letter in name)
    text = str(number) if backwards else drawable(printable(name), number, LONGEST_NAME)
    return f"class {number}" if text == str(number) and name != text else text


@cache
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(findfont(f"DejaVu Sans:weight={'bold' if bold else 'normal'}"), size)


def metadata(texts: Mapping[str, str]) -> PngInfo:
    """Texts to be saved in a PNG file, in any script."""
    info = PngInfo()
    for key, text in texts.items():
        info.add_itxt(key, printable(text))
    return info
