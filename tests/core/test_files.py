import os

import pytest

from etag.core.files import write_atomically


@pytest.mark.parametrize("content", ["Grüße\n", b"\x00\xff"], ids=["text", "bytes"])
def test_a_file_holds_what_was_written(tmp_path, content):
    file = tmp_path / "file"
    file.write_text("something longer that was there before")
    write_atomically(file, content)
    assert file.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert os.listdir(tmp_path) == ["file"]


def test_a_reader_sees_the_old_content_or_the_new(tmp_path):
    file = tmp_path / "file"
    file.write_text("old")
    with file.open() as reader:
        write_atomically(file, "new")
        assert reader.read() == "old"
    assert file.read_text() == "new"


def test_a_write_that_fails_leaves_the_old_content_and_no_rubbish(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "inner").write_text("old")
    with pytest.raises(OSError, match="taken"):
        write_atomically(tmp_path / "taken", "new")  # a folder cannot be replaced by a file
    assert os.listdir(tmp_path) == ["taken"]
    assert (tmp_path / "taken" / "inner").read_text() == "old"
