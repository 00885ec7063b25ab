"""Evaluating a model on labeled folders."""

import shutil
from pathlib import Path

from tests.app.conftest import etag, printed, refused

from etag.app.predicting import predict_files
from etag.data.folders import list_images
from etag.learner.model_directory import ModelDirectory


def load(model):
    return ModelDirectory(model).load_classifier()


def test_it_is_right_more_often_than_chance(learned, digits_folder):
    known = digits_folder("test", range(5), first=100, count=20)
    found = printed(etag("evaluate", learned, known, "--json"))
    assert found["images"] == 100
    assert found["accuracy"] > 0.4, "five digits, chance is 0.2"
    assert sum(map(sum, found["confusion"])) == 100
    assert {row["class"] for row in found["per_class"]} == {f"digit {digit}" for digit in range(5)}
    assert 0 <= found["calibration_error"] <= 1


def test_classes_that_the_model_does_not_know_are_reported_apart(learned, digits_folder, tmp_path):
    folder = tmp_path / "images"
    shutil.copytree(digits_folder("test", range(5), first=100, count=20), folder)
    shutil.copytree(digits_folder("strange", (7, 8), first=100, count=10), folder, dirs_exist_ok=True)
    found = printed(etag("evaluate", learned, folder, "--json"))
    assert found["images"] == 100
    assert found["unknown_classes"] == {"digit 7": 10, "digit 8": 10}
    assert 0.5 < found["auroc"] <= 1
    known = digits_folder("test", range(5), first=100, count=20)
    apart = printed(etag("evaluate", learned, known, "--unknown", digits_folder("strange", (7, 8)), "--json"))
    assert apart["auroc"] == found["auroc"]
    assert apart["per_class"] == found["per_class"]
    text = etag("evaluate", learned, folder).stdout
    assert "that the model does not know, which count as unknown images: digit 7 10, digit 8 10\n" in text
    message = refused(etag("evaluate", learned, digits_folder("strange", (7, 8))))
    assert "knows none of the classes of" in message
    assert "it knows digit 0, digit 1, digit 2, digit 3 and digit 4." in message


def test_the_surest_mistakes_come_first(learned, digits_folder):
    folder = digits_folder("test", range(5), first=100, count=20)
    found = printed(etag("evaluate", learned, folder, "--json"))
    mistakes = found["mistakes"]
    assert len(mistakes) == min(24, round(100 * (1 - found["accuracy"])))
    likely = [mistake["probability"] for mistake in mistakes]
    assert likely == sorted(likely, reverse=True)
    predicted = {prediction.path: prediction for prediction in predict_files(*load(learned), list_images(folder))}
    for mistake in mistakes:
        assert Path(mistake["path"]).parent.name == mistake["label"] != mistake["predicted"]
        assert predicted[mistake["path"]].classes[0] == mistake["predicted"]


def test_what_was_written_is_confirmed(learned, digits_folder, tmp_path):
    folder = digits_folder("test", range(5), first=100, count=20)
    done = etag("evaluate", learned, folder, "--out", tmp_path / "confusion.png")
    assert f"{tmp_path / 'confusion.png'}: written, the confusion matrix." in done.stdout
    assert (tmp_path / "confusion.png").is_file()


def test_a_lesson_can_be_followed_by_the_true_accuracy_of_all_lessons(copied, digits_folder):
    labeled = digits_folder("labeled", range(7), first=100, count=20)
    words = ["--set", "train.steps=4", "--evaluate", labeled]
    done = etag("learn", copied, digits_folder("third", (5, 6)), *words)
    assert done.returncode == 0, done.stderr
    found = printed(etag("evaluate", copied, labeled, "--json"))
    right = {row["class"]: row["accuracy"] for row in found["per_class"]}
    assert f"'{labeled}': {found['accuracy']:.1%} of 140 images are classified correctly, by lesson:" in done.stdout
    for number, digits in ((1, (0, 1, 2)), (2, (3, 4)), (3, (5, 6))):
        mean = sum(right[f"digit {digit}"] for digit in digits) / len(digits)
        assert f"  {mean:6.1%}  of {20 * len(digits):5}  lesson {number} (digit {digits[0]}" in done.stdout
    missing = refused(etag("learn", copied, digits_folder("eight and nine", (8, 9)), "--evaluate", "nosuch"))
    assert "'nosuch' cannot be read" in missing
    assert ModelDirectory(copied).version == 3, "nothing was learned"
