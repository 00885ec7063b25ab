"""Writing files so that a reader sees the old content or the new, never half of it."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from etag.core.errors import EtagError


def user_cache() -> Path:
    """Where this user's files are kept when nobody says where."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "etag"


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside, flush to disk, rename, flush the folder."""
    data = content.encode() if isinstance(content, str) else content
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with disk_full_error(path):
            with aside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
            _flush_folder(path.parent)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def disk_full_error(path: Path) -> Iterator[None]:
    """Say in people's words when the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise EtagError(
            f"there is no room to write '{path}' ({error.strerror}); what was saved before is whole: make room, and "
            "the same command goes on."
        ) from error


def _flush_folder(folder: Path) -> None:
    """A rename is only safe from a power cut once the folder is on disk too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_partial(path: Path) -> bool:
    """Whether it is what a killed process left of a file it was writing."""
    return path.name.startswith(".") and path.name.endswith(".part")


@contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Hold a lock on a file; where another process holds it, fail with these words.

    The system lets go of the locks of a process that dies, however it dies.
    """
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EtagError(busy) from None
        yield


def checksum(data: bytes) -> str:
    """What tells a damaged file from a whole one."""
    return blake2b(data, digest_size=16).hexdigest()
