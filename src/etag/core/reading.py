"""Reading files that somebody else may have made: an `EtagError` names the file and what is wrong with it."""

from pathlib import Path

from etag.core.errors import EtagError
from etag.core.files import read_file


def read_limited(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes."""
    try:
        return read_file(path, limit)
    except OSError as error:
        raise EtagError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # a path that holds a NUL
        raise EtagError(f"{path} cannot be read: {error}.") from error


def read_text(path: Path, limit: int) -> str:
    """The UTF-8 text of such a file."""
    try:
        return read_limited(path, limit).decode()
    except UnicodeDecodeError as error:
        raise EtagError(f"{path} cannot be read: it is not text in UTF-8.") from error
