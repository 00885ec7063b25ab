"""Names of methods, and the recipe sections that apply to them."""

import pytest

from etag.core.errors import EtagError
from etag.methods.base import MethodInfo
from etag.methods.fine import Fine
from etag.methods.registry import METHODS, variant


def sections(name):
    return [section for section, _ in METHODS[name].recipe_sections]


def test_the_sections_of_a_recipe_that_apply_to_a_method():
    assert sections("ewc") == ["ewc"]
    assert sections("eewc") == ["ewc", "eewc"]
    assert sections("etag") == ["gfr", "etag"]
    assert sections("b0") == ["gfr", "etag", "b0"]


def test_the_prefix_is_there_for_every_method_that_is_none_itself():
    plain = {name for name in METHODS if METHODS[name].has_e_variant}
    assert plain == {
        *("abd", "bir", "dgr", "efc", "ewc", "fine", "gc", "gfr", "il2m", "joint", "ldc", "lucir", "lwf", "lwm", "mas"),
        *("pass", "podnet"),
    }
    assert {name for name in METHODS if METHODS[name].is_e_variant} == {f"e{name}" for name in plain}
    assert "eetag" not in set(METHODS)
    with pytest.raises(EtagError, match="unknown method 'eetag'"):
        METHODS["eetag"]
    with pytest.raises(EtagError, match="unknown method 'eeewc'"):
        METHODS["eeewc"]


def test_the_prefix_makes_one_class_not_a_new_one_each_time():
    assert METHODS["elwf"] is METHODS["elwf"]


def test_a_new_method_has_its_prefix_at_once(monkeypatch):
    class Mine(Fine):
        pass

    monkeypatch.setattr(METHODS, "_items", METHODS._items | {"mine": Mine})
    Mine.name, Mine.info = "mine", MethodInfo("Mine", "a", "b", "c")
    assert METHODS["emine"].Options(name="emine").embedding is not None
    assert METHODS["emine"].info.summary == "a; with embedding distillation"
    assert METHODS["emine"].info.title == "eMine"
    assert METHODS["emine"].is_e_variant


def test_changed_defaults_go_below_what_is_given_and_above_the_defaults():
    parent = METHODS["etag"]
    made = variant(parent, "warm", parent.info, {"embedding": {"tau": 5.0}}).Options
    assert made(name="warm").embedding.tau == 5.0
    assert made(name="warm").guidance, "what it derives from has changed defaults too"
    assert made(name="warm", embedding={"views": "none"}).embedding.tau == 5.0
    assert made(name="warm", embedding={"tau": 2.0}).embedding.tau == 2.0
    assert made(name="warm", embedding=None).embedding is None


WITH_GENERATOR = (
    "gfr",
    "egfr",
    "etag",
    "b0",
    "b1",
    "b2",
    "b3",
    "dgr",
    "edgr",
    "tag",
    "bir",
    "ebir",
    "gc",
    "egc",
    "abd",
    "eabd",
)


@pytest.mark.parametrize("name", list(METHODS))
def test_the_info_says_what_is_stored(name):
    info = METHODS[name].info
    assert all((info.title, info.summary, info.source, info.stores, info.head))
    assert info.exemplars == (name.removeprefix("e") in ("il2m", "lucir", "podnet"))
    assert (info.generator is not None) == (name in WITH_GENERATOR)
    assert info.all_data == name.endswith("joint")
