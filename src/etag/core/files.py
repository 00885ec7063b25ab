"""Writing files so that a reader sees the old content or the new, never half of it."""

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside, flush to disk, then rename."""
    data = content.encode() if isinstance(content, str) else content
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
