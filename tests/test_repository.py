"""The files at the top of the repository agree with each other."""

import re
import subprocess
from pathlib import Path

import yaml

import etag

ROOT = Path(__file__).parents[1]


def content(name):
    return yaml.safe_load((ROOT / name).read_text())


def test_pre_commit_runs_make_lint_and_downloads_nothing():
    (repository,) = content(".pre-commit-config.yaml")["repos"]
    (hook,) = repository["hooks"]
    assert (repository["repo"], hook["entry"], hook["language"]) == ("local", "make lint", "system")


def test_the_workflow_runs_make_test_on_every_supported_python():
    job = content(".github/workflows/test.yml")["jobs"]["test"]
    assert job["strategy"]["matrix"]["python-version"] == ["3.11", "3.12", "3.13"]
    assert job["steps"][-1]["run"].startswith("make test")
    assert "ETAG_REQUIRE" not in (ROOT / ".github/workflows/test.yml").read_text(), "it has no shared data"


def test_make_test_is_lint_and_pytest():
    done = subprocess.run(
        ["make", "--dry-run", "--assume-old=.venv/installed", "test"], cwd=ROOT, capture_output=True, text=True
    )
    commands = [line for line in done.stdout.splitlines() if ".venv/bin/" in line and "pip" not in line]
    assert [re.sub(r".*\.venv/bin/", "", line) for line in commands] == [
        "ruff check .",
        "ruff format --check .",
        "mypy",
        "lint-imports",
        "pytest -n 2 -m 'not slow'",
    ]
    assert commands[-1].startswith("OMP_NUM_THREADS=1 ")


def test_our_ci_requires_the_data_and_the_browser():
    text = (ROOT / ".ci" / "run").read_text()
    assert "ETAG_REQUIRE_DATA=1" in text
    assert "ETAG_REQUIRE_BROWSER=1" in text


def test_the_citation_names_this_version_and_the_paper():
    citation = content("CITATION.cff")
    assert citation["version"] == etag.__version__
    assert citation["authors"] == [{"name": "etag contributors"}]
    assert citation["references"][0]["title"].startswith("eTag: Class-Incremental Learning")


def test_the_changelog_has_a_section_for_what_is_not_released():
    sections = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == "[Unreleased]"


def test_every_issue_template_is_a_form():
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert len(forms) == 4
    for form in forms:
        if form.name != "config.yml":
            assert {"name", "description", "body"} <= content(form.relative_to(ROOT)).keys()


def test_models_and_runs_are_changed_through_one_module():
    """So that every change is atomic, has its error message, and is known to be safe from a kill."""
    direct = re.compile(r"\.unlink\(|rmtree|os\.replace|os\.rename|\.mkdir\(|write_text|write_bytes|\.rmdir\(|copytree")
    files = [*(ROOT / "src/etag/learner").glob("*.py"), *(ROOT / "src/etag/app").glob("*.py")]
    files += (ROOT / "src/etag/experiments").glob("run*.py")
    found = [
        f"{file.name}: {line.strip()}"
        for file in files
        for line in file.read_text().splitlines()
        if direct.search(line)
    ]
    # a pickled estimator is unpacked into a temporary folder of its own
    assert [line for line in found if not line.startswith("estimator.py: (home / name)")] == []
