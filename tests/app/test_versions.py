"""Versions of a model: listed, chosen, renamed classes, a threshold that is set by hand."""

import json
import re

import pytest
from tests.app.conftest import etag, printed, refused

from etag.data.folders import list_images
from etag.learner.model_directory import ModelDirectory

SHORT = ["--set", "train.steps=4"]


def test_versions_are_listed_with_lesson_classes_accuracy_size_and_parent(copied, digits_folder):
    assert etag("models", "rollback", copied).returncode == 0
    assert etag("learn", copied, digits_folder("third", (5, 6)), *SHORT, "--keep", "5").returncode == 0
    rows = printed(etag("models", "list", copied, "--json"))
    assert [(row["number"], row["parent"], row["is_current"], row["classes"]) for row in rows] == [
        (1, None, False, 3),
        (3, 1, True, 5),
    ]
    history = printed(etag("info", copied, "--json"))["history"]
    assert rows[1]["accuracy"] == history[-1]["evaluation"]["accuracy"]
    assert rows[1]["images"] == history[-1]["evaluation"]["images"] == 10
    assert rows[1]["bytes"] == sum(printed(etag("info", copied, "--json"))["bytes"].values())
    text = etag("models", "list", copied).stdout
    assert "* 3, from 1  20" in text
    assert "learn digit 5 and digit 6; " in text
    assert "5 classes known, " in text
    assert f"`etag models rollback {copied} --to VERSION` returns to another." in text


def test_any_stored_version_can_be_returned_to(copied, digits_folder):
    assert etag("learn", copied, digits_folder("third", (5, 6)), *SHORT).returncode == 0
    assert "version 1 again" in etag("models", "rollback", copied, "--to", 1).stdout
    assert len(printed(etag("info", copied, "--json"))["classes"]) == 3
    assert "version 3 again" in etag("models", "rollback", copied, "--to", 3).stdout
    assert len(printed(etag("info", copied, "--json"))["classes"]) == 7
    assert "has no version 7: stored are 1, 2, 3." in refused(etag("models", "rollback", copied, "--to", 7))


def test_how_many_versions_are_stored_is_an_option_that_later_lessons_keep(copied, digits_folder):
    for name, digits, more in (("third", (5, 6), ["--keep", "4"]), ("just 7", (7,), []), ("just 8", (8,), [])):
        assert etag("learn", copied, digits_folder(name, digits), *SHORT, *more).returncode == 0
    assert ModelDirectory(copied).versions == [2, 3, 4, 5]
    assert etag("learn", copied, digits_folder("just 9", (9,)), *SHORT, "--keep", 1).returncode == 0
    assert ModelDirectory(copied).versions == [6]


def test_a_class_is_renamed(copied, digits_folder):
    files = list_images(digits_folder("test", range(5), first=100, count=20))
    before = etag("predict", copied, *files, "--format", "csv").stdout
    done = etag("rename", copied, "digit 3", "three")
    assert (done.returncode, done.stdout) == (0, f"'{copied}': the class 'digit 3' is called 'three' now.\n")
    after = etag("predict", copied, *files, "--format", "csv").stdout
    assert "three" in after
    assert re.sub(r"(?<=,)three", "digit 3", after) == before
    about = printed(etag("info", copied, "--json"))
    assert about["classes"] == ["digit 0", "digit 1", "digit 2", "three", "digit 4"]
    assert about["history"][1]["classes"] == ["three", "digit 4"]
    assert about["history"][2]["kind"] == "rename"
    assert etag("learn", copied, digits_folder("third", (5, 6)), *SHORT).returncode == 0, "it still learns"
    assert "already knows a class 'digit 4'" in refused(etag("rename", copied, "three", "Digit 4"))
    assert "did you mean 'three'?" in refused(etag("rename", copied, "thre", "x"))
    assert etag("models", "rollback", copied, "--to", 2).returncode == 0
    assert "digit 3" in printed(etag("info", copied, "--json"))["classes"], "older versions keep the old name"


def test_a_threshold_that_was_set_by_hand_stays(copied, digits_folder):
    folder = digits_folder("test", range(5), first=100, count=20)
    done = etag("models", "threshold", copied, "0.999")
    assert done.stdout == f"'{copied}': 0.999 (set by hand: lessons leave it as it is)\n"
    rejected = etag("predict", copied, folder)
    assert "The threshold was set by hand" in rejected.stderr
    assert rejected.stdout.count("(none of these)") > 20
    assert etag("learn", copied, digits_folder("third", (5, 6)), *SHORT).returncode == 0
    assert ModelDirectory(copied).about().threshold == 0.999
    assert "no threshold" in etag("models", "threshold", copied, "none").stdout
    assert "(none of these)" not in etag("predict", copied, folder).stdout
    for wrong in ("much", "nan", "inf"):
        assert f"the threshold '{wrong}' is not" in refused(etag("models", "threshold", copied, wrong))


def test_forgetting_says_what_it_removes_and_asks(copied, monkeypatch):
    asked = []
    monkeypatch.setattr("etag.cli.learning.terminal_talk", lambda: _Answering(asked))
    message = refused(etag("forget", copied, "digit 1"))
    assert message == "error: nothing was changed.\n"
    (question,) = asked
    assert re.match(
        r"Everything that is stored of 'digit 1' alone \(learned in lesson 1, .*\) is removed from '.*', and 2 stored "
        r"versions, which know it, are deleted. This cannot be undone. Forget 'digit 1'\?",
        question,
    )
    assert ModelDirectory(copied).versions == [1, 2]
    assert etag("forget", copied, "digit 1", "--yes").returncode == 0
    assert len(asked) == 1
    assert ModelDirectory(copied).versions == [3]


class _Answering:
    """A terminal at which somebody says no."""

    def __init__(self, asked):
        self.ask = lambda question: asked.append(question)


def test_models_of_before_are_still_read(copied):
    """Fields that this version added may be missing."""
    directory = ModelDirectory(copied)
    content = {key: value for key, value in directory.current().content.items() if key != "threshold_chosen"}
    with directory.locked():
        directory._add(content, keep=1)
    assert "threshold_chosen" not in json.loads((copied / "versions" / "3" / "about.json").read_text())
    assert not directory.about().threshold_chosen


@pytest.mark.parametrize("words", [("rename", "digit 1", "x"), ("models", "rollback"), ("models", "threshold", "0.5")])
def test_an_interrupted_lesson_is_not_given_up_silently(copied, interrupted_lesson, words):
    command, rest = (list(words[:2]), list(words[2:])) if words[0] == "models" else ([words[0]], list(words[1:]))
    message = refused(etag(*command, interrupted_lesson, *rest))
    assert "has an unfinished lesson (learning 2 classes from '" in message
    assert "resumes it, --yes gives it up." in message
    assert ModelDirectory(interrupted_lesson).unfinished.exists()
    done = etag(*command, interrupted_lesson, *rest, "--yes")
    assert done.returncode == 0, done.stderr
    assert not ModelDirectory(interrupted_lesson).unfinished.exists()
