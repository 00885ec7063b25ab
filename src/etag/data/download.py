"""Fetching a source's files: with progress, resumed where it was cut, and checked."""

import hashlib
import os
import shutil
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from etag.core.errors import EtagError

CHUNK = 1 << 18
Progress = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all if known


@dataclass(frozen=True)
class Download:
    """One file on the web. A zip is unpacked, without its top folder."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        """Of the file."""
        return self.url.rsplit("/", 1)[-1]


def fetch(download: Download, folder: Path, progress: Progress) -> Path:
    """Have the file in the folder, complete and as it should be; what is there already is not fetched again."""
    target, part = folder / download.name, folder / f"{download.name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (target.is_file() and _md5(target) == download.md5):
            _receive(download, part, progress)
            if (found := _md5(part)) != download.md5:
                part.unlink()
                raise EtagError(
                    f"{download.url} arrived damaged (its MD5 is {found}, not {download.md5}) and was thrown away: "
                    "try again, and if that happens twice the file has been changed."
                )
            os.replace(part, target)
    except OSError as error:  # the network's errors are among these
        raise EtagError(
            f"{download.url} could not be fetched: {error}; what has arrived is kept, and the same command goes on "
            "from there."
        ) from error
    return target


def _receive(download: Download, part: Path, progress: Progress) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(download.url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # what we have is all there is
            raise
        return
    with response, part.open("ab" if response.status == 206 else "wb") as file:
        have = file.tell()
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        try:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                have += len(chunk)
                progress(download.name, have, total)
        except HTTPException as error:
            raise OSError(f"the connection broke after {have:,} bytes") from error
        if total is not None and have < total:
            raise OSError(f"the connection broke after {have:,} of {total:,} bytes")


def _md5(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip into the folder, without its top folder; nothing can get outside of it."""
    aside = folder / ".unpacking"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        with zipfile.ZipFile(archive) as content:
            content.extractall(aside)  # drops drive letters, leading slashes and ..
        (top,) = aside.iterdir()
        for entry in top.iterdir():
            if (folder / entry.name).is_dir():  # from an earlier time; a folder is not replaced as a file is
                shutil.rmtree(folder / entry.name)
            os.replace(entry, folder / entry.name)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise EtagError(f"{archive} cannot be unpacked: {error}.") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
