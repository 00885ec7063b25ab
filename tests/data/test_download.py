"""Downloads from a real HTTP server on this machine."""

import hashlib
import http.server
import io
import re
import threading
import zipfile

import pytest

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
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        cut = self.path == "/cut" and not start
        self.wfile.write(CONTENT[start : len(CONTENT) // 2 if cut else None])

    def log_message(self, *_): ...


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.requests = []
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def at(server, path, md5=None):
    return Download(f"http://127.0.0.1:{server.server_port}{path}", md5 or hashlib.md5(CONTENT).hexdigest())


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


def test_a_file_that_is_there_is_verified_and_not_requested(server, tmp_path):
    (tmp_path / "whole").write_bytes(CONTENT)
    fetch(at(server, "/whole"), tmp_path, print_nothing)
    assert server.requests == []
    (tmp_path / "whole").write_bytes(CONTENT[:-1])
    assert fetch(at(server, "/whole"), tmp_path, print_nothing).read_bytes() == CONTENT


def test_a_wrong_checksum_is_an_error_and_nothing_is_saved(server, tmp_path):
    with pytest.raises(EtagError, match="arrived damaged"):
        fetch(at(server, "/whole", md5="0" * 32), tmp_path, print_nothing)
    assert list(tmp_path.iterdir()) == []


def test_errors_of_the_network_name_the_file(server, tmp_path):
    with pytest.raises(EtagError, match=r"could not be downloaded: HTTP Error 404"):
        fetch(at(server, "/missing"), tmp_path, print_nothing)
    closed = Download("http://127.0.0.1:9/file", "0" * 32)
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
    """As when the same command is given twice, or was interrupted."""
    (tmp_path / "a.zip").write_bytes(zipped("top/train/x.txt", "top/words.txt"))
    unpack(tmp_path / "a.zip", tmp_path)
    (tmp_path / "train" / "x.txt").write_text("spoilt")
    unpack(tmp_path / "a.zip", tmp_path)
    assert (tmp_path / "train" / "x.txt").read_text() == "top/train/x.txt"


@pytest.mark.parametrize("content", [zipped("../evil.txt", "top/x.txt"), zipped("/evil.txt", "top/x.txt"), b"no zip"])
def test_a_zip_cannot_write_outside_its_folder(content, tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "a.zip").write_bytes(content)
    with pytest.raises(EtagError, match="cannot be unpacked"):
        unpack(inner / "a.zip", inner)
    assert [path.name for path in inner.iterdir()] == ["a.zip"]
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]
