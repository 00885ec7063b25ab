"""The documents are true: what they name exists, what exists is named, and their code runs."""

import re
from pathlib import Path
from typing import Any, get_args

import torch
from pydantic import BaseModel

from etag.core.options import TrainOptions
from etag.experiments.config import RunConfig, resolve
from etag.experiments.run import run
from etag.methods.etag import EtagOptions
from etag.methods.registry import METHODS

ROOT = Path(__file__).parents[1]
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
    prefix, named = "", set()
    for line in (ROOT / "docs" / "fidelity.md").read_text().splitlines():
        if line.startswith("| choice"):
            prefix = "method.generator." if "method.generator." in line else ""
        elif line.startswith("| "):
            named |= {prefix + key for key in re.findall(r"`([a-z_.0-9]+)`", line.split("|")[2])}
    return named


def test_fidelity_names_only_options_that_exist():
    known = keys(RunConfig, "") | keys(EtagOptions, "method.")
    assert fidelity_keys() - known == set()


def test_fidelity_explains_every_option_of_etag():
    of_etag = keys(EtagOptions, "method.") - {"method.name"}
    groups = ("method.generator.train", "method.refit")
    training = {f"{group}.{name}" for group in groups for name in TrainOptions.model_fields}
    assert of_etag - training - fidelity_keys() == set()


def test_every_method_is_in_the_documents():
    text = (ROOT / "docs" / "methods.md").read_text()
    assert all(f"`{name}`" in text for name in METHODS)


def code_blocks(file: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / file).read_text(), re.DOTALL)


def test_the_python_in_readme_and_api_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = code_blocks("README.md")
    quick = block.replace('{"train.epochs": 5}', repr({k: v for k, v in QUICK.items() if k != "split"}))
    quick = quick.replace('method="etag"', 'method="fine"').replace("b5-5x1", "b2-1x2")
    exec(compile(quick, "README.md", "exec"), {})
    assert (tmp_path / "runs" / "first" / "report.html").is_file()
    _signature, load = code_blocks("docs/api.md")
    names = {"images": torch.zeros(3, 1, 8, 8, dtype=torch.uint8)}
    exec(compile(load, "docs/api.md", "exec"), names)
    assert names["probabilities"].shape == (3, 4)
    assert torch.allclose(names["probabilities"].sum(1), torch.ones(3))


def test_a_runs_own_configuration_is_a_recipe_that_repeats_it(tmp_path):
    config = resolve(given={"method": "etag", **QUICK, "method.generator.train.epochs": 1})
    first = run(config, tmp_path / "a")
    again = resolve(str(tmp_path / "a" / "config.yaml"))
    assert again == config
    assert run(again, tmp_path / "b")["confusion"] == first["confusion"]
