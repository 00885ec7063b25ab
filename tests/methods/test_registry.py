"""Names of methods, and what they are compositions of."""

import pytest

from etag.core.errors import EtagError
from etag.methods.base import Method, MethodInfo
from etag.methods.fine import Fine
from etag.methods.registry import METHODS, lineage, variant


def names(name):
    return [cls.name for cls in lineage(METHODS[name])]


def test_a_variant_is_a_composition_of_what_it_derives_from():
    assert names("ewc") == ["ewc"]
    assert names("eewc") == ["ewc", "eewc"]
    assert names("etag") == ["gfr", "etag"]
    assert names("b0") == ["gfr", "etag", "b0"]


def test_the_prefix_is_there_for_every_method_that_is_none_itself():
    plain = {name for name in METHODS if len(lineage(METHODS[name])) == 1}
    assert {name for name in METHODS if METHODS[name].is_embedded} == {f"e{name}" for name in plain}
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
    Mine.name, Mine.__bases__ = "mine", (Method,)
    Mine.Options, Mine.card = Fine.Options, MethodInfo("a", "b", "c")
    assert METHODS["emine"].Options(name="emine").embedding is not None
    assert METHODS["emine"].card.summary == "a; with embedding distillation"


def test_a_preset_goes_below_what_is_given_and_above_the_defaults():
    of = METHODS["etag"]
    made = variant(of, "warm", of.card, {"embedding": {"tau": 5.0}}).Options
    assert made(name="warm").embedding.tau == 5.0
    assert made(name="warm").guidance, "what it derives from has a preset too"
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
def test_cards_tell_what_is_kept(name):
    card = METHODS[name].card
    assert all((card.summary, card.source, card.stores, card.head))
    assert card.exemplars == (name.removeprefix("e") in ("il2m", "lucir", "podnet"))
    assert (card.generator is not None) == (name in WITH_GENERATOR)
    assert card.all_data == name.endswith("joint")
