"""The documents are true: what they name exists, what exists is named, links resolve, and their code runs."""

import importlib.util
import re
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from pydantic import BaseModel

import etag
from etag.core.options import TrainOptions
from etag.core.work import Callback
from etag.engine.runtime import resolve_runtime
from etag.experiments.config import RunConfig, resolve
from etag.experiments.run import run
from etag.methods.etag import EtagOptions
from etag.methods.registry import METHODS

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
WITHDRAWN = ("1.6 times the base epochs", "43.24 against 43.16", "seeds share one class order", "scaled too strongly")
QUICK = {"split": "b2-1x2", "train.epochs": 1, "model.width": 4, "data.train_per_class": 16, "data.test_per_class": 4}


def is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def keys(group: type[BaseModel], prefix: str) -> set[str]:
    """Every option below a group, by dotted key; a group that may be of several kinds is of the first."""
    found = set()
    for name, info in group.model_fields.items():
        inner = next(filter(is_group, get_args(info.annotation) or [info.annotation]), None)
        if inner is not None:
            found |= keys(inner, f"{prefix}{name}.")
        else:
            found.add(f"{prefix}{name}")
    return found


def fidelity_keys() -> set[str]:
    """The options named in the second column of docs/fidelity.md's tables."""
    lines = (ROOT / "docs" / "fidelity.md").read_text().splitlines()
    rows = [line.split("|") for line in lines if line.startswith("| ") and not line.startswith("| choice")]
    return {key for row in rows for key in re.findall(r"`([a-z_.0-9]+)`", row[2])}


def test_fidelity_names_only_options_that_exist():
    known = keys(RunConfig, "") | keys(EtagOptions, "method.") | {"method.refit"}
    assert fidelity_keys() - known == set()


def test_fidelity_explains_every_option_of_etag():
    of_etag = keys(EtagOptions, "method.") - {"method.name"}
    groups = ("method.generator.train", "method.refit")
    training = {f"{group}.{name}" for group in groups for name in TrainOptions.model_fields}
    assert of_etag - training - fidelity_keys() == set()


def test_tables_of_fidelity_are_whole():
    """A blank line inside a table would cut off the rows after it."""
    lines = (ROOT / "docs" / "fidelity.md").read_text().splitlines()
    starts = [here for before, here in pairwise(lines) if here.startswith("|") and before == ""]
    assert all(line.startswith("| choice") for line in starts)


def test_every_method_is_in_the_documents():
    text = (ROOT / "docs" / "methods.md").read_text()
    assert all(f"`{name}`" in text for name in METHODS)


def code_blocks(file: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / file).read_text(), re.DOTALL)


def test_the_python_in_readme_and_api_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = code_blocks("README.md")
    quick = block.replace('{"train.epochs": 5}', repr({k: v for k, v in QUICK.items() if k != "split"}))
    quick = quick.replace('method="etag"', 'method="fine"').replace("b5-5x1", "b2-1x2")
    exec(compile(quick, "README.md", "exec"), {})
    assert (tmp_path / "runs" / "first" / "report.html").is_file()
    _run, load, _classifier, callback, plugins, learner = code_blocks("docs/api.md")
    names = {"images": torch.zeros(3, 1, 8, 8, dtype=torch.uint8)}
    exec(compile(load, "docs/api.md", "exec"), names)
    assert names["probabilities"].shape == (3, 4)
    assert torch.allclose(names["probabilities"].sum(1), torch.ones(3))
    assert len(names["names"]) == 3
    (tmp_path / "my_methods.py").write_text(callback)
    exec(compile(plugins, "docs/api.md", "exec"), {})
    settings = QUICK | {"runtime.callbacks": ["accuracy-file"]}
    etag.run("digits", method="fine", settings=settings, out="logged", plugins=["my_methods.py"])
    assert len((tmp_path / "logged" / "accuracy.txt").read_text().splitlines()) == 2, "one line per task"
    exec(compile(learner, "docs/api.md", "exec"), {})
    assert "4 classes:" in capsys.readouterr().out


def test_api_describes_what_is_exported_and_every_callback_method():
    text = (ROOT / "docs" / "api.md").read_text()
    assert all(f"etag.{name}" in text for name in etag.__all__)
    methods = [name for name in vars(Callback) if not name.startswith("_")]
    assert all(f"`{name}(" in text for name in methods)


def test_options_page_is_current_and_etag_has_few_keys():
    spec = importlib.util.spec_from_file_location("options_page", ROOT / "tools" / "options_page.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert (ROOT / "docs" / "options.md").read_text() == tool.page(), "run python tools/options_page.py"
    assert len(tool.method_keys("etag")) <= 40


def anchors(page: Path) -> set[str]:
    """The targets of links to the headings of a page, as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file) if file else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {link}, but there is no such heading"


def test_every_page_and_example_is_linked():
    text = "".join(page.read_text() for page in PAGES)
    for file in [*(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]:
        assert f"{file.name})" in text or f"{file.name}#" in text, file.name


@pytest.mark.parametrize("file", ["README.md", "docs/results.md"])
def test_withdrawn_results_are_withdrawn_at_the_top(file):
    top = " ".join((ROOT / file).read_text().replace(">", " ").split())[:2500]
    assert all(words in top for words in WITHDRAWN)


def test_every_command_of_the_documents_exists():
    """The words after `etag` in all shell blocks are commands, and their long options exist."""
    from typer.main import get_command

    from etag.cli import app

    root = get_command(app)
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
            for line in re.findall(r"^(?:\.venv/bin/|\$)?etag (.*)$", block, re.MULTILINE):
                words = line.partition("#")[0].split()
                command = root
                while getattr(command, "commands", None) and words and words[0] in command.commands:
                    command = command.commands[words.pop(0)]
                assert command is not root, f"{page.name}: etag {line}"
                known = {option for parameter in command.params for option in parameter.opts}
                used = {word.partition("=")[0] for word in words if word.startswith("--")}
                assert used <= known, f"{page.name}: etag {line}"


def test_no_machine_is_named():
    """No absolute path of anybody's machine is in the repository's documents."""
    files = subprocess.run(["git", "ls-files", "*.md", "examples"], cwd=ROOT, capture_output=True, text=True).stdout
    for file in files.split():
        assert not re.search(r"(?<![\w$~.])/(home|work|root|Users)/", (ROOT / file).read_text()), file


def test_a_runs_own_configuration_is_a_recipe_that_repeats_it(tmp_path):
    config = resolve(given={"method": "etag", **QUICK, "method.generator.train.epochs": 1})
    first = run(config, tmp_path / "a")
    again = resolve(str(tmp_path / "a" / "config.yaml"))
    assert again == config.model_copy(update={"runtime": resolve_runtime(config.runtime)})  # with the threads it had
    assert run(again, tmp_path / "b")["confusion"] == first["confusion"]
