import builtins

import pytest

from etag.core.errors import EtagError
from etag.data.source import SOURCES
from etag.experiments import plugins
from etag.models.backbone import BACKBONES


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nraise ValueError('no luck')\n", r"plug-in '.*mine.py' failed in line 2: ValueError: no luck"),
        ("import no_such_package\n", "ModuleNotFoundError"),
        ("def broken(:\n", "SyntaxError"),
        ("1 / 0\n", "line 1: ZeroDivisionError"),
    ],
)
def test_a_plug_in_that_raises_is_an_error_of_one_sentence(text, message, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(EtagError, match=message):
        plugins.load([file])


def test_a_plug_in_that_is_missing_or_no_python_is_refused(tmp_path):
    with pytest.raises(EtagError, match="does not exist"):
        plugins.load([tmp_path / "none.py"])
    (tmp_path / "mine.txt").write_text("x = 1")
    with pytest.raises(EtagError, match="is not a Python file"):
        plugins.load([tmp_path / "mine.txt"])


def test_a_file_is_run_once_and_named_by_its_full_path(tmp_path, monkeypatch):
    (tmp_path / "counted.py").write_text(
        "import builtins\nbuiltins.etag_count = getattr(builtins, 'etag_count', 0) + 1\n"
    )
    monkeypatch.chdir(tmp_path)
    assert plugins.load(["counted.py"]) == plugins.load([tmp_path / "counted.py"]) == [str(tmp_path / "counted.py")]
    assert builtins.etag_count == 1


def test_backbones_and_sources_can_be_plugged_in_too(tmp_path):
    (tmp_path / "more.py").write_text(
        "from etag.models.backbone import BACKBONES\n"
        "from etag.data.source import SOURCES, source\n"
        "BACKBONES.add('my-resnet')(BACKBONES['resnet18'])\n"
        "source('my-digits', 'mine')(SOURCES['digits'].load)\n"
    )
    plugins.load([tmp_path / "more.py"])
    assert BACKBONES["my-resnet"] is BACKBONES["resnet18"]
    assert SOURCES["my-digits"].load is SOURCES["digits"].load
    del BACKBONES._items["my-resnet"], SOURCES._items["my-digits"]


def test_entry_points_of_packages_are_loaded_once(tmp_path, monkeypatch):
    """A package with the files that an installer writes."""
    (tmp_path / "their_package.py").write_text(
        "import builtins\nbuiltins.etag_loads = getattr(builtins, 'etag_loads', 0) + 1\n"
    )
    about = tmp_path / "theirs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[etag.plugins]\ntheirs = their_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugins.load([])
    plugins.load([])
    assert builtins.etag_loads == 1


def test_a_package_that_fails_is_named(tmp_path, monkeypatch):
    about = tmp_path / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[etag.plugins]\nbroken = no_such_module_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EtagError, match="the installed plug-in 'broken' failed"):
        plugins.load([])
