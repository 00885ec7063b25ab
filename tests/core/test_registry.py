import importlib
import pkgutil
import sys

import pytest

from etag.core.errors import EtagError
from etag.core.registry import Registry
from etag.data.source import SOURCES
from etag.methods.registry import METHODS
from etag.models.backbone import BACKBONES


@pytest.fixture
def animals(tmp_path, monkeypatch):
    """A registry, and a package of two modules that register themselves in it."""
    package = tmp_path / "animals"
    package.mkdir()
    (package / "__init__.py").write_text("from etag.core.registry import Registry\nZOO = Registry('animal', 'animals')")
    for file, name in (("barking", "dog"), ("mewing", "cat")):
        (package / f"{file}.py").write_text(f"from animals import ZOO\nZOO.add('{name}')('a {name}')")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("animals").ZOO
    for name in [name for name in sys.modules if name.partition(".")[0] == "animals"]:
        del sys.modules[name]


def test_every_module_of_the_package_is_imported_on_first_use(animals):
    assert "animals.mewing" not in sys.modules
    assert list(animals) == ["cat", "dog"]
    assert animals["cat"] == "a cat"


@pytest.mark.parametrize(
    ("registry", "package", "known"),
    [
        (METHODS, "etag.methods", {"etag", "fine", "joint"}),
        (BACKBONES, "etag.models.backbones", {"resnet18"}),
        (SOURCES, "etag.data.sources", {"digits", "cifar100"}),
    ],
    ids=["methods", "backbones", "sources"],
)
def test_the_registries_of_this_package_import_all_their_modules(registry, package, known):
    assert known <= set(registry)
    modules = pkgutil.iter_modules(importlib.import_module(package).__path__)
    assert {f"{package}.{module.name}" for module in modules} <= set(sys.modules)


def test_an_unknown_name_is_an_error_that_suggests_the_most_similar(animals):
    with pytest.raises(EtagError, match=r"unknown animal 'dgo': did you mean 'dog'\? Known are cat, dog\."):
        animals["dgo"]


def test_two_items_of_one_name_are_an_error():
    registry = Registry("animal", "animals")
    cat = registry.add("cat")(object())
    assert registry.add("cat")(cat) is cat
    with pytest.raises(EtagError, match="two animals have the name 'cat'"):
        registry.add("cat")(object())
