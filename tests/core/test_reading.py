import os
from pathlib import Path

import pytest

from etag.core.errors import EtagError
from etag.core.reading import read_limited, read_text


def test_a_file_is_read_up_to_the_limit(tmp_path):
    (tmp_path / "file").write_text("four")
    assert read_limited(tmp_path / "file", 4) == b"four"
    assert read_text(tmp_path / "file", 4) == "four"
    with pytest.raises(EtagError, match=r"file cannot be read: it is larger than 3 B\."):
        read_limited(tmp_path / "file", 3)


def test_what_cannot_be_read_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(b"\xff")
    for name, reason in [
        ("pipe", "not a regular file"),
        (".", "not a regular file"),
        ("none", "No such file"),
        ("a" * 300, "File name too long"),
        ("a\0b", "embedded null byte"),
        ("bytes", "it is not text in UTF-8"),
    ]:
        with pytest.raises(EtagError, match=f"cannot be read: {reason}"):
            read_text(Path(tmp_path, name), 10)
