"""`benchmarks/all.py` replaces its own tables in docs/performance.md and nothing else, and only by true ones."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("benchmarks_all", ROOT / "benchmarks" / "all.py")
benchmarks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(benchmarks)

PAGE = "Text.\n\n<!-- features -->\nold\n<!-- end -->\n\n<!-- peers -->\nold\n<!-- end -->\nMore text.\n"
NEW = "Text.\n\n<!-- features -->\n\nnew\n\n<!-- end -->\n\n<!-- peers -->\nold\n<!-- end -->\nMore text.\n"


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Call the script on a page of two benchmarks, at a commit and a load; returns the page afterwards."""
    page = tmp_path / "performance.md"
    page.write_text(PAGE)
    monkeypatch.setattr(benchmarks, "PAGE", page)
    monkeypatch.setattr(benchmarks, "measured", lambda name, quick: f"| {name} |\n| --- |\n| 1 |\n")

    def run(*words, changed="", load=0.0):
        monkeypatch.setattr(benchmarks, "git", lambda command, *_: changed if command == "status" else "c0ffee1")
        monkeypatch.setattr(benchmarks, "busy_share", lambda: load)
        monkeypatch.setattr(sys, "argv", ["all.py", *words])
        benchmarks.main()
        return page.read_text()

    return run


def test_a_block_is_replaced_and_nothing_else():
    assert benchmarks.replaced(PAGE, "features", "new\n") == NEW
    assert benchmarks.replaced(NEW, "features", "new\n") == NEW


def test_an_unknown_marker_is_an_error():
    with pytest.raises(SystemExit, match="has no marker <!-- predicting -->: add it"):
        benchmarks.replaced(PAGE, "predicting", "new\n")


@pytest.mark.parametrize("name", ["features", "peers"])
def test_a_missing_end_marker_is_an_error(name):
    """Also where the end marker of another block follows."""
    with pytest.raises(SystemExit, match=f"has no <!-- end --> after <!-- {name} -->: add it"):
        benchmarks.replaced(PAGE.replace(f"<!-- {name} -->\nold\n<!-- end -->", f"<!-- {name} -->\nold"), name, "new\n")


def test_tables_of_several_settings_are_one_table():
    one, other = (f"A sentence.\n\n| a | b |\n| --- | --- |\n| {number} | 0 |\n" for number in (1, 2))
    assert benchmarks.merged([one, other]) == f"{one}| 2 | 0 |\n"


def test_every_speed_benchmark_is_run_and_has_its_place_on_the_page():
    scripts = {file.stem for file in (ROOT / "benchmarks").glob("*.py")}
    scripts_of_tables = {name.partition("-")[0] for name in benchmarks.BENCHMARKS}
    assert scripts - {"all", "measure", "practitioner", "diagnosis", "exported", "near_copies"} == scripts_of_tables
    page = (ROOT / "docs" / "performance.md").read_text()
    for name in benchmarks.BENCHMARKS:
        benchmarks.replaced(page, name, "")


def test_a_table_comes_with_its_command_machine_and_commit(call):
    page = call("features")
    assert "| features |\n| --- |\n| 1 |\n\n`python benchmarks/all.py features`: " in page
    assert "bf16 units" in page
    assert "commit c0ffee1, PyTorch" in page
    assert page.startswith("Text.")
    assert page.endswith(PAGE.partition("<!-- end -->")[2])


def test_changes_that_are_not_committed_are_refused(call):
    with pytest.raises(SystemExit, match=r"commit src/etag/new\.py, benchmarks/all\.py first"):
        call("features", changed="?? src/etag/new.py\n M benchmarks/all.py")


def test_the_share_of_the_processor_that_is_used_is_measured():
    assert 0 <= benchmarks.busy_share(0.1) <= 1


def test_a_busy_machine_is_refused_unless_forced(call, capsys):
    with pytest.raises(SystemExit, match=r"other processes use 80% of the processor; .* --force"):
        call("features", load=0.8)
    assert "while other processes used 80% of the processor" in call("features", "--force", load=0.8)
    assert "the page will say so" in capsys.readouterr().err


def test_quick_writes_nothing(call, capsys):
    assert call("features", "--quick", changed="?? src/etag/new.py", load=2.0) == PAGE
    assert "| features |" in capsys.readouterr().out


def test_an_unknown_name_is_an_error(call, capsys):
    with pytest.raises(SystemExit):
        call("speed")
    assert "there is no benchmark 'speed': choose from engine_overhead, " in capsys.readouterr().err


def test_missing_data_is_an_error_before_anything_is_started(call, monkeypatch, tmp_path):
    monkeypatch.setenv("ETAG_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match=r"learning needs .ETAG_DATA/cifar100"):
        call("learning")
