"""Writing files so that a reader sees the old content or the new, never half of it."""

import os
from hashlib import blake2b
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside, flush to disk, rename, flush the folder."""
    data = content.encode() if isinstance(content, str) else content
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        _flush_folder(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    """A rename is only safe from a power cut once the folder is on disk too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checksum(data: bytes) -> str:
    """What tells a damaged file from a whole one."""
    return blake2b(data, digest_size=16).hexdigest()
