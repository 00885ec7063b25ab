import pytest

from etag.report.style import (
    CLASSES_WITH_OWN_LOOK,
    METHOD_LOOKS,
    class_looks,
    drawable,
    family_looks,
    is_embedded,
    method_looks,
    method_name,
    task_looks,
)


@pytest.mark.parametrize(
    ("method", "name"),
    [("etag", "eTag"), ("fine", "Fine"), ("lwf", "LwF"), ("elwf", "eLwF"), ("my_own", "my_own"), ("", "")],
)
def test_methods_are_named_as_in_papers(method, name):
    assert method_name(method) == name


def test_a_known_method_always_looks_the_same():
    assert method_looks(["mine", "etag", "lwf"])[1:] == [METHOD_LOOKS["etag"], METHOD_LOOKS["lwf"]]
    assert method_looks(["lwf", "fine"])[0] == METHOD_LOOKS["lwf"]


def test_methods_on_one_picture_differ_in_color_while_there_are_colors():
    for methods in (["dgr", "tag"], ["gfr", "b2", "lwf", "lucir"], ["bir", "gc", "abd", "etag"], ["a", "b", "etag"]):
        assert len({look.color for look in method_looks(methods)}) == len(methods)


def test_no_two_look_alike():
    methods = ["etag", "etag", "etag", "gfr", "mine", "fine", "joint", "yours"]
    assert len(set(method_looks(methods))) == len(methods)
    assert len(set(METHOD_LOOKS.values())) == len(METHOD_LOOKS)
    assert len(set(class_looks(CLASSES_WITH_OWN_LOOK))) == CLASSES_WITH_OWN_LOOK
    assert len(set(task_looks(26))) == 26


def test_more_methods_than_looks_still_get_one_each():
    assert len(method_looks([f"method {n}" for n in range(60)])) == 60


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
def test_names_in_pictures_fit_and_can_be_drawn(name, text):
    assert drawable(name, number=7, limit=9) == text


def test_a_method_and_its_e_variant_share_a_color_but_not_a_line():
    gfr, egfr, etag = family_looks(["gfr", "egfr", "etag"])
    assert gfr.color == egfr.color != etag.color
    assert (gfr.line, egfr.line, etag.line) == ("--", "-", "-")
    assert family_looks(["gfr", "etag"])[0].line == "-"  # alone it needs no distinction


def test_etag_is_not_tag_with_embedding_distillation():
    assert [is_embedded(method) for method in ("egfr", "etag", "ewc", "eewc", "mine")] == [
        True,
        False,
        False,
        True,
        False,
    ]
