"""Downloading the files of a data source: with progress, resumed after an interruption, and verified."""

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
Progress = Callable[[str, int, int | None], None]  # file name, bytes so far, total bytes if known


@dataclass(frozen=True)
class Download:
    """One file on the web, and the MD5 checksum that it must have."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        """The name of the file, which is the last part of its URL."""
        return self.url.rsplit("/", 1)[-1]


def fetch(download: Download, folder: Path, progress: Progress) -> Path:
    """Download the file into the folder and verify it, unless it is there already; returns its path."""
    target, part = folder / download.name, folder / f"{download.name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (target.is_file() and _md5(target) == download.md5):
            _receive(download, part, progress)
            if (md5 := _md5(part)) != download.md5:
                part.unlink()
                raise EtagError(
                    f"{download.url} arrived damaged (its MD5 is {md5}, not {download.md5}) and was deleted: "
                    "try again; if it happens twice, the file on the server has changed."
                )
            os.replace(part, target)
    except OSError as error:  # the network's errors are among these
        raise EtagError(
            f"{download.url} could not be downloaded: {error}; what has arrived is saved, and the same command "
            "resumes from there."
        ) from error
    return target


def _receive(download: Download, part: Path, progress: Progress) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(download.url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: the part is the whole file already
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
    """Unpack a zip into the folder, without the zip's top folder; nothing is written outside the folder."""
    unpacked = folder / ".unpacking"
    shutil.rmtree(unpacked, ignore_errors=True)
    try:
        with zipfile.ZipFile(archive) as content:
            content.extractall(unpacked)  # drops drive letters, leading slashes and ..
        (top,) = unpacked.iterdir()
        for entry in top.iterdir():
            if (folder / entry.name).is_dir():  # unpacked before: os.replace does not replace folders
                shutil.rmtree(folder / entry.name)
            os.replace(entry, folder / entry.name)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise EtagError(f"{archive} cannot be unpacked: {error}.") from error
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)
