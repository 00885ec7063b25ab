import pytest

from etag.methods.base import MethodInfo
from etag.methods.registry import METHODS
from etag.report import style
from etag.report.style import (
    CLASSES_WITH_OWN_STYLE,
    class_styles,
    drawable,
    is_e_variant,
    method_styles,
    method_title,
    task_styles,
)


@pytest.fixture
def plugin(monkeypatch):
    """Register a method under a name, with this information, for one test."""

    def add(name, **info):
        like = METHODS["fine"]
        about = MethodInfo(**({"title": "", "summary": "a", "source": "b", "stores": "c"} | info))
        made = type("Mine", (like,), {"info": about, "name": name})
        monkeypatch.setitem(METHODS._items, name, made)

    return add


@pytest.mark.parametrize(
    ("method", "title"),
    [
        ("etag", "eTag"),
        ("fine", "Fine"),
        ("lwf", "LwF"),
        ("elwf", "eLwF"),
        ("b2", "B2"),
        ("my_own", "my_own"),
        ("", ""),
    ],
)
def test_titles_come_from_the_methods(method, title):
    assert method_title(method) == title


def test_every_registered_method_has_a_title_and_a_valid_color():
    for name in METHODS:
        info = METHODS[name].info
        assert info.title, name
        assert style._own_color(name) == info.color is not None, name


def test_title_and_color_of_a_plug_in_are_used(plugin):
    plugin("mine", title="MyMethod", color="#123456")
    assert method_title("mine") == "MyMethod"
    assert [one.color for one in method_styles(["etag", "mine"])] == [METHODS["etag"].info.color, "#123456"]


def test_a_plug_in_without_title_or_with_a_bad_color_still_gets_both(plugin):
    plugin("mine", color="not a color")
    assert method_title("mine") == "mine"
    assert method_styles(["mine"])[0].color in style.SPARE_COLORS


def test_a_method_keeps_its_color_in_every_figure():
    lwf = METHODS["lwf"].info.color
    assert method_styles(["mine", "etag", "lwf"])[2].color == lwf
    assert method_styles(["lwf", "fine"])[0].color == lwf


def test_methods_in_one_figure_differ_in_color_while_there_are_colors():
    for methods in (["dgr", "tag"], ["gfr", "b2", "lwf", "lucir"], ["bir", "gc", "abd", "etag"], ["a", "b", "etag"]):
        assert len({one.color for one in method_styles(methods)}) == len(methods)


def test_variants_of_one_method_differ_in_color():
    assert len({one.color for one in method_styles(["etag"] * 6)}) == 6


def test_no_two_styles_are_equal():
    for methods in (["etag", "etag", "etag", "gfr", "mine", "fine", "joint", "yours"], list(METHODS)):
        assert len(set(method_styles(methods))) == len(methods)
    assert len(set(class_styles(CLASSES_WITH_OWN_STYLE))) == CLASSES_WITH_OWN_STYLE
    assert len(set(task_styles(26))) == 26


def test_any_number_of_methods_gets_a_style():
    assert len(method_styles([f"method {n}" for n in range(200)])) == 200


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cat", "cat"),
        ("a rather long name", "a rather…"),
        ("two\nlines", "two lines"),
        ("日本", "7"),
        (" ", "7"),
        ("Öl", "Öl"),
    ],
)
def test_names_in_figures_fit_and_can_be_drawn(name, text):
    assert drawable(name, number=7, limit=9) == text


def test_a_method_and_its_e_variant_share_a_color_but_not_a_line():
    gfr, egfr, etag = method_styles(["gfr", "egfr", "etag"])
    assert gfr.color == egfr.color != etag.color
    assert (gfr.line, egfr.line, etag.line) == ("--", "-", "-")
    assert method_styles(["gfr", "etag"])[0].line == "-"  # alone it needs no distinction


def test_etag_is_not_tag_with_embedding_distillation():
    names = ("egfr", "etag", "ewc", "eewc", "mine")
    assert [is_e_variant(method) for method in names] == [True, False, False, True, False]
