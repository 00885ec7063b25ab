"""Files that survive a crash: atomic writes, locks, checksums, and where the user's cache is."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from etag.core.errors import EtagError


def user_cache() -> Path:
    """The folder for downloads and runs when the user names none, such as `~/.cache/etag` on Linux."""
    return user_cache_path("etag", appauthor=False)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file's content; a reader, or a crash, finds the old content or the new, never a part of it."""
    data = content.encode() if isinstance(content, str) else content
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with disk_full_error(path):
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            _flush_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def disk_full_error(path: Path) -> Iterator[None]:
    """Turn the system's errors about a full disk into an `EtagError` that names the file."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise EtagError(
            f"there is no room to write '{path}' ({error.strerror}); what was saved before is complete: free some "
            "disk space, and the same command resumes."
        ) from error


def _flush_folder(folder: Path) -> None:
    """Flush the folder's entries: a rename is only safe from a power cut once the folder is on disk too."""
    if os.name == "nt":  # Windows cannot open a folder
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_partial(path: Path) -> bool:
    """Whether this is a file that `write_atomically` could not finish because its process was killed."""
    return path.name.startswith(".") and path.name.endswith(".part")


@contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Hold a lock on a file; raise `EtagError` with the message `busy` at once where somebody else holds it. Its folder
    is created if it does not exist. The system releases the locks of a process that ends, however it ends."""
    lock = FileLock(path, blocking=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        lock.acquire()
    except Timeout:
        raise EtagError(busy) from None
    except OSError as error:
        raise EtagError(f"the directory '{path.parent}' cannot be written: {error.strerror}.") from error
    try:
        yield
    finally:
        lock.release()


def checksum(data: bytes) -> str:
    """A BLAKE2 digest of 32 hexadecimal digits, to tell a damaged file from a complete one."""
    return blake2b(data, digest_size=16).hexdigest()
