"""From an image file to pixels. What cannot be read is said in words, never in a traceback."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}
FORMATS = (
    "JPEG",
    "PNG",
    "WEBP",
    "BMP",
    "GIF",
)  # GIFs are often misnamed; other readers of Pillow's need not meet a stranger's bytes


class UnreadableImage(Exception):
    """A file that holds no image that can be decoded; the text says why."""


def decode(path: str | Path, side: int, channels: int = 3) -> Pixels:
    """The image upright, resized to side x side: uint8, channels first; in gray where one channel is asked for."""
    with _opened(path) as image:
        image.draft("RGB", (side, side))  # lets a large JPEG be decoded at a smaller scale
        upright = _in_color(ImageOps.exif_transpose(image))
        if upright.size != (side, side):
            upright = upright.resize((side, side), Image.Resampling.BILINEAR, reducing_gap=2.0)
        if channels == 1:
            return np.asarray(upright.convert("L"))[None].copy()
        return np.ascontiguousarray(np.asarray(upright).transpose(2, 0, 1))


def image_size(path: str | Path) -> tuple[int, int]:
    """Width and height as the image is seen, from the file's head alone."""
    with _opened(path) as image:
        if image.format == "PNG" and "exif" not in image.info:  # or all pixels would be read to look behind them
            return image.size
        turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)  # the EXIF orientations that swap the sides
        return (image.height, image.width) if turned else (image.width, image.height)


class _opened:
    """An open image, whose errors, at opening and at decoding, become Unreadable."""

    def __init__(self, path: str | Path) -> None:
        self._path = path

    def __enter__(self) -> Image.Image:
        self._caught = warnings.catch_warnings()
        self._caught.__enter__()
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            self._image = Image.open(self._path, formats=FORMATS)
        except Exception as error:
            self._caught.__exit__(None, None, None)
            raise UnreadableImage(_reason(error)) from error
        return self._image

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._caught.__exit__(None, None, None)
        self._image.close()
        if isinstance(error, Exception) and not isinstance(error, UnreadableImage):
            raise UnreadableImage(_reason(error)) from error


def _in_color(image: Image.Image) -> Image.Image:
    if image.mode == "P":  # a palette may hold transparency, which RGB alone would misread
        image = image.convert("RGBA")
    if image.mode.startswith("I"):  # 16 bits of gray
        gray = np.asarray(image).astype(np.uint32) >> 8
        image = Image.fromarray(gray.clip(0, 255).astype(np.uint8))
    return image.convert("RGB")


def _reason(error: Exception) -> str:
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return "far too large"
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, FileNotFoundError):
        return "no longer there"
    if isinstance(error, PermissionError):
        return "may not be read"
    return f"damaged: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
