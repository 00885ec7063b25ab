"""What is said about files that are not read."""

from etag.data import formats, not_read
from etag.data.not_read import NotRead


def counted(*paths):
    found = NotRead()
    for path in paths:
        found.add(path)
    return str(found)


def test_nothing_is_said_about_hidden_files_and_junk():
    assert counted("a/.DS_Store", "a/._1.jpg", "a/Thumbs.db", "a/desktop.ini") == ""


def test_kinds_are_counted_the_most_frequent_first():
    assert counted("a/x.txt", "a/b.MP4", "a/c.mp4") == "not read: 2 .mp4 (such as a/b.MP4), 1 .txt (such as a/x.txt)"
    assert counted("a/scan", "a/odd. name") == "not read: 2 without an ending (such as a/scan)"


def test_many_kinds_stay_on_one_line():
    text = counted(*(f"{number}.k{number}" for number in range(20)))
    assert text.endswith("1 .k7 (such as 7.k7), 12 of 12 other kinds")


def test_the_package_that_reads_them_is_named(monkeypatch):
    monkeypatch.setattr(formats, "ENDINGS", {".jpg"})
    assert counted("a.HEIC") == "not read: 1 .heic (such as a.HEIC; to read them: pip install 'etag-cil[heic]')"
    assert "pip install --upgrade pillow" in counted("a.avif")
    monkeypatch.setattr(formats, "ENDINGS", {".heic"})
    assert not_read.how_to_read(".heic") is None
