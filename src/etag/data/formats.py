"""Which files are read as images, by the ending of their names, and which decoders read them."""

import logging
from functools import cache
from importlib.util import find_spec

from PIL import features

logging.getLogger("PIL").addHandler(logging.NullHandler())  # else it prints remarks about damaged TIFFs

HEIC = (".heic", ".heif")
_HEIC_IS_INSTALLED = find_spec("pillow_heif") is not None
_AVIF_IS_INSTALLED = features.check("avif") is True  # depends on how Pillow was built

ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
ENDINGS |= set(HEIC) if _HEIC_IS_INSTALLED else set()
ENDINGS |= {".avif"} if _AVIF_IS_INSTALLED else set()

# The only Pillow decoders that untrusted bytes may reach. Files often have the ending of another format, so the ending
# does not choose the decoder. Data files (parquet, archives) never hold the formats that only cameras and scanners use.
FORMATS_OF_DATA_FILES = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
FORMATS = (*FORMATS_OF_DATA_FILES, "TIFF", *(["AVIF"] if _AVIF_IS_INSTALLED else []))


@cache
def file_formats() -> tuple[str, ...]:
    """The names of the decoders for image files, ready to be used."""
    if not _HEIC_IS_INSTALLED:
        return FORMATS
    import pillow_heif

    pillow_heif.register_heif_opener()
    return (*FORMATS, "HEIF")


def how_to_read(ending: str) -> str | None:
    """What to do to read files with this ending; None if there is nothing."""
    if ending in ENDINGS:
        return None
    if ending in HEIC:
        return "to read them: pip install 'etag-cil[heic]'"
    return "to read them: pip install --upgrade pillow" if ending == ".avif" else None
