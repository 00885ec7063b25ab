"""Downloads from a real HTTPS server on this machine."""

import hashlib
import http.server
import io
import re
import zipfile

import pytest
from tests.data.conftest import https_server

from etag.core.errors import EtagError
from etag.data.download import Download, fetch, unpack

CONTENT = bytes(range(256)) * 4096  # 1 MiB


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT, ranges too; /cut ends half-way the first time, /plain ignores ranges."""

    def do_GET(self):
        self.server.requests.append((self.path, self.headers.get("Range")))
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        start = int(match[1]) if match and self.path != "/plain" else 0
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        cut = self.path == "/cut" and not start
        self.wfile.write(CONTENT[start : len(CONTENT) // 2 if cut else None])

    def log_message(self, *_): ...


@pytest.fixture
def server(tmp_path_factory, monkeypatch):
    with https_server(Handler, tmp_path_factory.mktemp("server"), monkeypatch) as (address, running):
        running.address = address
        yield running


def at(server, path, sha256=None):
    return Download(server.address + path, sha256 or hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


def print_nothing(*_): ...


def test_a_file_is_downloaded_with_progress(server, tmp_path):
    reports = []
    file = fetch(at(server, "/whole"), tmp_path / "deep" / "folder", lambda *now: reports.append(now))
    assert file.read_bytes() == CONTENT
    assert reports[-1] == ("whole", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in reports] == sorted(done for _, done, _ in reports)
    assert [path.name for path in file.parent.iterdir()] == ["whole"]


def test_an_interrupted_download_is_resumed(server, tmp_path):
    with pytest.raises(EtagError, match=r"could not be downloaded: the connection broke after .* resumes from there"):
        fetch(at(server, "/cut"), tmp_path, print_nothing)
    assert (tmp_path / "cut.part").stat().st_size == len(CONTENT) // 2
    assert not (tmp_path / "cut").exists()
    assert fetch(at(server, "/cut"), tmp_path, print_nothing).read_bytes() == CONTENT
    assert server.requests == [("/cut", None), ("/cut", f"bytes={len(CONTENT) // 2}-")]


def test_a_server_without_ranges_is_read_from_the_start(server, tmp_path):
    (tmp_path / "plain.part").write_bytes(b"old")
    assert fetch(at(server, "/plain"), tmp_path, print_nothing).read_bytes() == CONTENT


def test_a_complete_part_is_not_downloaded_again(server, tmp_path):
    (tmp_path / "whole.part").write_bytes(CONTENT)
    assert fetch(at(server, "/whole"), tmp_path, print_nothing).read_bytes() == CONTENT
    assert server.requests == []


def test_a_file_that_is_there_is_verified_and_not_requested(server, tmp_path):
    (tmp_path / "whole").write_bytes(CONTENT)
    fetch(at(server, "/whole"), tmp_path, print_nothing)
    assert server.requests == []
    (tmp_path / "whole").write_bytes(CONTENT[:-1])
    assert fetch(at(server, "/whole"), tmp_path, print_nothing).read_bytes() == CONTENT


def test_a_wrong_checksum_is_an_error_and_nothing_is_saved(server, tmp_path):
    with pytest.raises(EtagError, match="arrived damaged"):
        fetch(at(server, "/whole", sha256="0" * 64), tmp_path, print_nothing)
    assert list(tmp_path.iterdir()) == []


def test_errors_of_the_network_name_the_file(server, tmp_path):
    with pytest.raises(EtagError, match=r"could not be downloaded: HTTP Error 404"):
        fetch(at(server, "/missing"), tmp_path, print_nothing)
    closed = Download("https://127.0.0.1:9/file", "0" * 64, 10)
    with pytest.raises(EtagError, match="could not be downloaded"):
        fetch(closed, tmp_path, print_nothing)


def zipped(*names):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, name)
    return buffer.getvalue()


def test_a_zip_is_unpacked_without_its_top_folder(tmp_path):
    (tmp_path / "a.zip").write_bytes(zipped("top/train/x.txt", "top/words.txt"))
    unpack(tmp_path / "a.zip", tmp_path)
    assert (tmp_path / "train" / "x.txt").read_text() == "top/train/x.txt"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "train", "words.txt"]


def test_a_zip_may_be_unpacked_again(tmp_path):
    """As when the same command is given twice, or was interrupted; a file that was changed since is not replaced."""
    (tmp_path / "a.zip").write_bytes(zipped("top/train/x.txt", "top/words.txt"))
    unpack(tmp_path / "a.zip", tmp_path)
    (tmp_path / "words.txt").unlink()
    unpack(tmp_path / "a.zip", tmp_path)
    assert (tmp_path / "words.txt").read_text() == "top/words.txt"
    (tmp_path / "train" / "x.txt").write_text("changed")
    with pytest.raises(EtagError, match=r"train/x.txt' exists already, with other content; move it away\."):
        unpack(tmp_path / "a.zip", tmp_path)
    assert (tmp_path / "train" / "x.txt").read_text() == "changed"


@pytest.mark.parametrize("content", [zipped("../evil.txt", "top/x.txt"), zipped("/evil.txt", "top/x.txt"), b"no zip"])
def test_a_zip_cannot_write_outside_its_folder(content, tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "a.zip").write_bytes(content)
    with pytest.raises(EtagError, match="cannot be unpacked"):
        unpack(inner / "a.zip", inner)
    assert [path.name for path in inner.iterdir()] == ["a.zip"]
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]
