"""Small image files with known pixels, and servers of files."""

import http.server
import shutil
import ssl
import struct
import subprocess
import threading
import zlib
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image


def noise(seed=0, width=8, height=8):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write_picture(path, seed=0, width=8, height=8):
    """Write noise in the format of the file's ending, lossless except for JPEG; return the pixels."""
    pixels = noise(seed, width, height)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **({"lossless": True} if path.suffix.lower() == ".webp" else {}))
    return pixels


def write_classes(root, *paths, seed=0):
    """Write different images to these paths below a folder; return the folder."""
    for number, path in enumerate(paths):
        write_picture(root / path, seed=seed + number)
    return root


def png_of(width, height, bits=8, color=2, rows=b""):
    """Return the bytes of a PNG, whose header may differ from the data in `rows`."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@contextmanager
def https_server(handler, folder, patch):
    """Run a server with a certificate that only this process trusts; yields its address and itself."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key -out certificate"
    about = ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command.split(), *about], cwd=folder, check=True, capture_output=True)
    patch.setenv("SSL_CERT_FILE", str(folder / "certificate"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate", folder / "key")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.requests = []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}", server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def picture():
    """picture(path, seed=0, width=8, height=8) -> its pixels, height x width x 3."""
    return write_picture


@pytest.fixture(scope="session")
def classes_in():
    """classes_in(root, "cat/1.png", "dog/1.png", ...) -> root."""
    return write_classes


@pytest.fixture(scope="session")
def png_bytes():
    """png_bytes(width, height, bits, color, rows) -> the bytes of a PNG with this header."""
    return png_of
