"""The smoke grid, and its page, through the real commands."""

import json

import pytest
from tests.experiments.test_grid import etag


@pytest.mark.slow
def test_bench_then_report(tmp_path):
    done = etag("bench", "smoke", "--store", "store", "--jobs", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "6 of 6 runs are done: results/smoke" in done.stdout
    names = sorted(path.parent.name for path in (tmp_path / "results" / "smoke").rglob("metrics.json"))
    assert names == [f"{method}-seed{seed}" for method in ("etag", "fine", "gfr") for seed in (0, 1)]
    report = etag("report", "results/smoke", "--out", "page.html", cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    page = (tmp_path / "page.html").read_text()
    assert "eTag minus each other method" in page
    assert "etag run digits --method etag" in page, "the command that repeats a run"
    assert (tmp_path / "tables" / "results-digits-b3-2x2.csv").is_file()
    assert json.loads((tmp_path / "results/smoke/b3-2x2/etag-seed0/metrics.json").read_text())["method"] == "etag"
