"""What is said about classes before a lesson."""

import pytest
from tests.app.conftest import etag, settings
from tests.app.test_layouts import RIDGE, images

from etag.app.surprises import class_lines, surprises


def classes(*names, count=5):
    return {name: ["file"] * count for name in names}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("sunflower", "sunflowers"),
        ("sunflower", "sun flower"),
        ("sun-flower", "sun_flower"),
        ("Daisy", "daisi"),
        ("daisy", "daisies"),
        ("cat", "cats"),
        ("vitamin", "vitamine"),
        ("tulip", "tullip"),
    ],
)
def test_names_that_are_nearly_the_same(one, other):
    for pair in ((one, other), (other, one)):
        assert f"'{pair[0]}' and '{pair[1]}'" in surprises(classes(*pair))[0]
        assert f"'{pair[0]}' and '{pair[1]}'" in surprises(classes(pair[1]), known=[pair[0]])[0]
    assert surprises(classes("rose"), known=[one, other]) == [], "both are known already"


@pytest.mark.parametrize(
    "names",
    [
        ("cat", "cot"),
        ("digit 1", "digit 2"),
        ("class_01", "class_11"),
        ("type a", "type b"),
        ("cat", "dog"),
        ("n1", "n"),
    ],
)
def test_names_that_are_different(names):
    assert surprises(classes(*names)) == []


@pytest.mark.parametrize(
    "name", ["New folder", "new folder (2)", "__MACOSX", ".ipynb_checkpoints", "rose - Copy", "tmp"]
)
def test_names_that_are_no_classes(name):
    assert f"these are learned as classes, but do not look like ones: {name}." in surprises(classes("rose", name))


def test_all_classes_are_listed_on_lines_that_fit(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    lines = class_lines(classes(*(f"class number {number}" for number in range(10))))
    assert all(len(line) <= 40 for line in lines)
    assert "".join(lines).count("class number") == 10
    assert lines[0] == "10 classes: class number 0 5,"
    assert lines[-1].endswith("class number 9 5.")


def test_a_lesson_begins_with_its_classes_and_what_is_remarkable(tmp_path, copied):
    images(tmp_path, "photos/daisy", "photos/daisi", "photos/test", count=3)
    images(tmp_path, "photos/rose", count=40, first=100)
    out = etag("learn", tmp_path / "m", tmp_path / "photos", *RIDGE, "--dry-run").stdout.splitlines()
    assert out[:4] == [
        "4 classes: daisi 3, daisy 3, rose 40, test 3.",
        "rare classes are recognized less often; add images if you can: daisi (3 images, the largest class has 40), "
        "daisy (3 images, the largest class has 40) and test (3 images, the largest class has 40).",
        "names that are nearly the same, so they may be one class: 'daisi' and 'daisy'.",
        "these are learned as classes, but look like parts of a data set: test.",
    ]
    more = images(tmp_path, "more/digits 1")
    out = etag("learn", copied, more / "more", *settings("train.steps=2", generator=False)[-2:], "--dry-run").stdout
    assert "may be one class: 'digit 1' and 'digits 1'." in out
