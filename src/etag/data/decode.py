"""Decoding image files. A file that cannot be decoded raises UnreadableImage with a short reason."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from etag.core.files import require_regular_file
from etag.core.images import Resize

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}
# The only Pillow decoders that untrusted bytes may reach; GIF because such files often have another format's ending.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
EXIF_ORIENTATION = 0x0112
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


class UnreadableImage(Exception):
    """The file holds no image that can be decoded; the text is the reason."""


def decode(path: str | Path, resize: Resize, channels: int = 3) -> Pixels:
    """Return the image as uint8 of shape (channels, side, side), RGB or gray, rotated by its EXIF orientation."""
    with _opened(path) as image:
        image.draft("RGB", resize.scaled_size(*image.size))  # lets a large JPEG be decoded at a smaller scale
        return pixels_of(image, resize, channels)


def pixels_of(image: Image.Image, resize: Resize, channels: int = 3) -> Pixels:
    """Return an opened image as `decode` does."""
    upright = _resized(_in_color(ImageOps.exif_transpose(image)), resize)
    if channels == 1:
        return np.asarray(upright.convert("L"))[None].copy()
    return _channels_first(upright)


def decode_photo(path: str | Path) -> Pixels:
    """Return the image in its own size as uint8 of shape (height, width, 3), RGB, rotated by its EXIF orientation."""
    with _opened(path) as image:
        return np.asarray(_in_color(ImageOps.exif_transpose(image)))


def _resized(image: Image.Image, resize: Resize) -> Image.Image:
    width, height = size = resize.scaled_size(*image.size)
    if image.size != size:
        image = image.resize(size, FILTERS[resize.interpolation], reducing_gap=2.0)
    left, top = (width - resize.side) // 2, (height - resize.side) // 2
    return image.crop((left, top, left + resize.side, top + resize.side)) if left or top else image


def decode_bytes(content: bytes, side: int) -> Pixels:
    """Return an image of exactly side x side pixels as uint8 of shape (3, side, side), from the bytes of its file."""
    with _opened(content) as image:
        if image.size != (side, side):  # known before anything is decoded
            raise UnreadableImage(f"it has {image.width}x{image.height} pixels, not {side}x{side}")
        return _channels_first(_in_color(image))


def image_size(path: str | Path) -> tuple[int, int]:
    """Return (width, height) after EXIF rotation; only the header of the file is read."""
    with _opened(path) as image:
        # without this, Pillow would decode all pixels of a PNG to look for EXIF data after them
        if image.format == "PNG" and "exif" not in image.info:
            return image.size
        swapped = image.getexif().get(EXIF_ORIENTATION, 1) in (5, 6, 7, 8)  # the orientations that swap the sides
        return (image.height, image.width) if swapped else (image.width, image.height)


@contextmanager
def _opened(source: str | Path | bytes) -> Iterator[Image.Image]:
    """Open a file, or the bytes of one, as an image; errors while opening or decoding become UnreadableImage."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            if not isinstance(source, bytes):
                require_regular_file(source)
            with Image.open(BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
                yield image
        except UnreadableImage:
            raise
        except Exception as error:
            raise UnreadableImage(_reason(error)) from error


def _in_color(image: Image.Image) -> Image.Image:
    if image.mode == "P":  # a palette may have transparency, which a direct conversion to RGB ignores
        image = image.convert("RGBA")
    if image.mode.startswith("I"):  # 16-bit gray
        gray = np.asarray(image).astype(np.uint32) >> 8
        image = Image.fromarray(gray.clip(0, 255).astype(np.uint8))
    return image.convert("RGB")


def _channels_first(image: Image.Image) -> Pixels:
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def _reason(error: Exception) -> str:
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return "far too large"
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, FileNotFoundError):
        return "file not found"
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"damaged: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
