"""Evaluating a model on labeled folders."""

from tests.app.conftest import etag, printed


def test_it_is_right_more_often_than_chance(learned, digits_folder):
    known = digits_folder("test", range(5), first=100, count=20)
    found = printed(etag("evaluate", learned, known, "--json"))
    assert found["images"] == 100
    assert found["accuracy"] > 0.4, "five digits, chance is 0.2"
    assert sum(map(sum, found["confusion"])) == 100
    assert {row["class"] for row in found["per_class"]} == {f"digit {digit}" for digit in range(5)}
    assert 0 <= found["calibration_error"] <= 1
