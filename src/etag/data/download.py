"""Downloading the files of a data source: with progress, resumed after an interruption, and verified."""

import filecmp
import hashlib
import os
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from etag.core.errors import EtagError
from etag.core.files import require_regular_file

CHUNK = 1 << 18
# limits for a hostile zip; Tiny-ImageNet has 120,609 entries of 0.3 GB
MOST_ENTRIES, MOST_BYTES = 150_000, 2 << 30
Progress = Callable[[str, int, int], None]  # file name, bytes so far, total bytes


@dataclass(frozen=True)
class Download:
    """One file on the web, and the SHA-256 checksum and the bytes that it must have."""

    url: str
    sha256: str
    size: int

    def __post_init__(self) -> None:
        _require_https(self.url)

    @property
    def name(self) -> str:
        """The name of the file, which is the last part of its URL."""
        return self.url.rsplit("/", 1)[-1]


def _require_https(url: str) -> None:
    if urlsplit(url).scheme != "https":
        raise EtagError(f"{url} is not downloaded, because only addresses with https are safe from changes on the way.")


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    """Follows redirections to other https addresses only."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _require_https(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetch(download: Download, folder: Path, progress: Progress) -> Path:
    """Download the file into the folder and verify it, unless it is there already; returns its path."""
    target, part = folder / download.name, folder / f"{download.name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (target.is_file() and _sha256(target) == download.sha256):
            _receive(download, part, progress)
            if (found := _sha256(part)) != download.sha256:
                part.unlink()
                raise EtagError(
                    f"{download.url} arrived damaged (its SHA-256 is {found}, not {download.sha256}) and was deleted: "
                    "try again; if it happens twice, the file on the server has changed."
                )
            os.replace(part, target)
    except (OSError, HTTPException, ValueError) as error:  # what a network, or a server that sends nonsense, can cause
        raise EtagError(
            f"{download.url} could not be downloaded: {error}; what has arrived is saved, and the same command "
            "resumes from there."
        ) from error
    return target


def _receive(download: Download, part: Path, progress: Progress) -> None:
    """Add to the part what is missing, and never more than that, whatever the server announces or sends."""
    have = 0
    if os.path.lexists(part):
        require_regular_file(part)
        have = part.stat().st_size
    if have >= download.size:
        return
    request = urllib.request.Request(download.url, headers={"Range": f"bytes={have}-"} if have else {})
    with (
        urllib.request.build_opener(_HttpsOnly).open(request, timeout=60) as response,
        part.open("ab" if response.status == 206 else "wb") as file,
    ):
        have = file.tell()
        while have < download.size and (chunk := response.read(min(CHUNK, download.size - have))):
            file.write(chunk)
            have += len(chunk)
            progress(download.name, have, download.size)
    if have < download.size:
        raise OSError(f"the connection broke after {have:,} of {download.size:,} bytes")


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip into the folder, without the zip's top folder. Nothing is written outside the folder, and no file in
    it is changed: one of the same name is an error, unless it has the same content."""
    try:
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder) as fresh:
            _extract(archive, fresh)
            tops = list(Path(fresh).iterdir())
            if len(tops) != 1 or not tops[0].is_dir():
                raise ValueError(f"it should hold one folder and nothing beside it, but holds {len(tops)} entries")
            files = [path.relative_to(tops[0]) for path in tops[0].rglob("*") if path.is_file()]
            new = [file for file in files if not os.path.lexists(folder / file)]
            for file in sorted({*files} - {*new}):
                if not filecmp.cmp(tops[0] / file, folder / file, shallow=False):
                    raise ValueError(f"'{folder / file}' exists already, with other content; move it away")
            for file in new:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                os.replace(tops[0] / file, folder / file)
    except Exception as error:  # damaged or hostile files can make the parser raise anything
        raise EtagError(f"{archive} cannot be unpacked: {error}.") from error


def _extract(archive: Path, folder: str) -> None:
    """Unpack a zip into an empty folder, within limits; `extract` drops drive letters, leading slashes and `..`."""
    with zipfile.ZipFile(archive) as content:
        entries = content.infolist()
        if len(entries) > MOST_ENTRIES:
            raise ValueError(f"it has more than {MOST_ENTRIES:,} entries")
        if sum(entry.file_size for entry in entries) > MOST_BYTES:
            raise ValueError(f"it holds more than {MOST_BYTES >> 20:,} MiB")
        for entry in entries:
            content.extract(entry, folder)  # which stops at the size that the entry announces
