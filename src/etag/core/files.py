"""Files that survive a crash: atomic writes, locks, checksums, and where the user's cache is."""

import errno
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from etag.core.errors import EtagError
from etag.core.text import data_size

MAX_BYTES = 1 << 34  # of a file that is read whole


def user_cache() -> Path:
    """The folder for downloads and runs when the user names none, such as `~/.cache/etag` on Linux."""
    return user_cache_path("etag", appauthor=False)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file's content; a reader, or a crash, finds the old content or the new, never a part of it."""
    data = content.encode() if isinstance(content, str) else content
    partial = _partial(path)
    with write_error(path):
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            move(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def move(path: Path, target: Path) -> None:
    """Rename a file or folder in one step that survives a power cut; a file replaces the target."""
    with write_error(target):
        os.replace(path, target)
        _flush_folder(target.parent)


def append(path: Path, data: bytes) -> None:
    """Add data to the end of a file, which is created if it does not exist."""
    with write_error(path), path.open("ab") as file:
        file.write(data)


def truncate(path: Path, size: int) -> None:
    """Shorten a file, if it exists, to `size` bytes."""
    with write_error(path):
        if path.exists():
            os.truncate(path, size)


def make_folder(path: Path) -> None:
    """Create a folder if it does not exist."""
    with write_error(path):
        path.mkdir(exist_ok=True)


def make_private_folder(path: Path) -> None:
    """Create a folder that only the user can read, and those above it, if they do not exist."""
    with write_error(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)


def remove(path: Path) -> None:
    """Delete a file, a link or a folder with all its content, if it exists. A folder is renamed first: after a crash it
    is there completely or not at all."""
    with write_error(path):
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return
        aside = path if is_partial(path) else _partial(path)
        if aside != path:
            move(path, aside)
        shutil.rmtree(aside)


def remove_partial(folder: Path) -> bool:
    """Delete what `write_atomically` and `remove` left in a folder because their process was killed; returns whether
    there was something."""
    left = [*filter(is_partial, folder.iterdir())] if folder.is_dir() else []
    for path in left:
        remove(path)
    return bool(left)


def read_file(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The content of a regular file of at most `limit` bytes. Anything else (a named pipe, a device) is not opened: it
    raises an OSError."""
    require_regular_file(path)
    if path.stat().st_size > limit:
        raise OSError(errno.EFBIG, f"it is larger than {data_size(limit)}", str(path))
    return path.read_bytes()


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


@contextmanager
def write_error(path: Path) -> Iterator[None]:
    """Turn the system's errors into an `EtagError` that names the file or folder that was to be written."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise EtagError(
                f"there is no room to write '{path}' ({error.strerror}); what was saved before is complete: free some "
                "disk space, and the same command resumes."
            ) from error
        raise EtagError(f"'{path}' cannot be written: {error.strerror or error}.") from error


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
    """Whether this is a file or folder that a killed process could not finish writing or deleting."""
    return path.name.startswith(".") and path.name.endswith(".part")


@contextmanager
def locked(path: Path, busy: str | None, check_stop: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a lock on a file. Where somebody else holds it, raise `EtagError` with the message `busy` at once; wait if
    `busy` is None, and call `check_stop` every second. The file's folder is created if it does not exist. The system
    releases the locks of a process that ends, however it ends."""
    lock = FileLock(path, timeout=0 if busy is not None else 1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        while not lock.is_locked:
            try:
                lock.acquire()
            except Timeout:
                if busy is not None:
                    raise EtagError(busy) from None
                check_stop()
    except OSError as error:
        raise EtagError(f"the directory '{path.parent}' cannot be written: {error.strerror}.") from error
    try:
        yield
    finally:
        lock.release()


def checksum(data: bytes) -> str:
    """A BLAKE2 digest of 32 hexadecimal digits, to tell a damaged file from a complete one."""
    return blake2b(data, digest_size=16).hexdigest()


def require_regular_file(path: str | Path) -> None:
    """Raise an `OSError`, which readers handle anyway, unless this is a regular file or a link to one: opening a pipe
    may wait forever, and a device may never end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


LONGEST_NAME = 200  # bytes; systems allow 255, and an ending may follow
RESERVED = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]) *(\.|$)", re.IGNORECASE)  # by Windows
MARKED = re.compile(r".*~[0-9a-f]{32}", re.IGNORECASE)


def safe_file_name(text: str) -> str:
    """Return a name for a file or folder on every system. An ordinary text is its own name. Any other is cleaned and
    ends in `~` and the text's checksum, as no ordinary text does, so two texts never share a name; the names of texts
    that differ in case only do so too."""
    clean = "".join(char if char.isprintable() and char not in '<>:"/\\|?*' else "_" for char in text)
    clean = clean.lstrip(".").rstrip(". ")
    if not clean or RESERVED.match(clean):
        clean = f"_{clean}"
    if clean == text and len(text.encode()) <= LONGEST_NAME and not MARKED.fullmatch(text):
        return text
    mark = f"~{checksum(text.encode(errors='surrogatepass'))}"
    return clean.encode()[: LONGEST_NAME - len(mark)].decode(errors="ignore") + mark
