"""Lessons that were interrupted: said, resumed, or given up on purpose."""

import json
import re

import pytest
from tests.app.conftest import etag, printed, refused

from etag.app import interrupted
from etag.learner.model_directory import ModelDirectory

STEPS = ["--set", "train.steps=100"]


def test_info_says_which_lesson_was_cut_and_how_far_it_was(copied, digits_folder, interrupt, monkeypatch):
    monkeypatch.setattr(interrupted, "RECORD_SECONDS", 0.0)
    folder = digits_folder("third", (5, 6))
    done = interrupt("learn", copied, folder, *STEPS)
    assert done.returncode == 130
    assert f"interrupted: '{copied}' is unchanged; the same command continues." in done.stderr
    found = re.search(
        rf"an unfinished lesson: learning 2 classes from '{folder}', begun \S+, about (\d+)% done\.",
        etag("info", copied).stdout,
    )
    assert 2 < int(found[1]) < 60, "45 of 100 steps, and the generator to come"
    assert printed(etag("info", copied, "--json"))["unfinished"]["folder"] == str(folder)
    resumed = etag("learn", copied, folder, *STEPS)
    assert resumed.returncode == 0, resumed.stderr
    assert f"resuming learning 2 classes from '{folder}'" in resumed.stdout
    assert "unfinished" not in etag("info", copied).stdout
    assert printed(etag("info", copied, "--json"))["unfinished"] is None


@pytest.mark.parametrize("change", ["folder", "options"])
def test_another_lesson_does_not_discard_it_unless_asked_to(interrupted_lesson, digits_folder, change):
    third = digits_folder("third", (5, 6))
    other = digits_folder("fourth", (7,)) if change == "folder" else third
    words = ["learn", interrupted_lesson, other, "--set", "train.steps=4"]
    message = refused(etag(*words))
    assert f"has an unfinished lesson (learning 2 classes from '{third}', begun " in message
    assert "and this is another lesson, or its images or options have changed: " in message
    assert f"`etag learn {interrupted_lesson} {third}` resumes it, --discard gives it up." in message
    assert etag(*words, "--dry-run").returncode == 0, "a dry run ends nothing"
    assert ModelDirectory(interrupted_lesson).unfinished.exists()
    done = etag(*words, "--discard")
    assert done.returncode == 0, done.stderr
    assert "discarding what was left of learning 2 classes" in done.stdout
    assert not ModelDirectory(interrupted_lesson).unfinished.exists()


def test_an_interrupted_first_lesson_is_said_and_resumed(tmp_path, digits_folder, interrupt):
    from tests.app.conftest import settings

    folder, model = digits_folder("first", (0, 1, 2)), tmp_path / "model"
    done = interrupt("learn", model, folder, *settings(), steps=30)
    assert done.returncode == 130, done.stderr
    assert "has learned nothing yet: its first lesson was interrupted (learning 3 classes" in refused(
        etag("info", model)
    )
    again = etag("learn", model, folder, *settings())
    assert again.returncode == 0, again.stderr
    assert "resuming task 1 at" in again.stdout


def test_minutes_become_steps_once(tmp_path, copied, digits_folder, interrupt):
    folder = digits_folder("third", (5, 6))
    done = interrupt("learn", copied, folder, "--minutes", "0.4")
    assert done.returncode == 130, done.stderr
    lesson = ModelDirectory(copied).unfinished.lesson
    assert (lesson.minutes, lesson.folder) == (0.4, str(folder))
    steps = re.search(r"etag, (\d+) steps of 32 images", done.stdout)
    assert lesson.steps == int(steps[1]) > 10
    again = etag("learn", copied, folder, "--minutes", "0.4")
    assert again.returncode == 0, again.stderr
    assert f"etag, {lesson.steps} steps of 32 images" in again.stdout
    assert "resuming task 3" in again.stdout


def test_minutes_that_make_no_sense(copied, with_statistics, digits_folder):
    folder = digits_folder("third", (5, 6))
    assert "besides training the network, this lesson takes" in refused(
        etag("learn", copied, folder, "--minutes", "0.0001")
    )
    assert "leave out --epochs" in refused(etag("learn", copied, folder, "--minutes", "1", "--epochs", "2"))
    assert "this lesson trains no network" in refused(etag("learn", with_statistics, folder, "--minutes", "1"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no json",
        b"[]",
        b'{"folder": 3, "classes": -1, "update": 0, "began": []}',
        b'{"folder": "x", "classes": 2, "update": false, "began": "now", "done": 1e99}',
        b"{" * 100_000,
    ],
)
def test_a_damaged_note_of_a_lesson_is_no_note(interrupted_lesson, content):
    (interrupted_lesson / "unfinished" / "lesson.json").write_bytes(content)
    assert ModelDirectory(interrupted_lesson).unfinished.lesson is None
    done = etag("info", interrupted_lesson)
    assert done.returncode == 0, done.stderr
    assert "unfinished" not in done.stdout


def test_a_note_cannot_do_anything_to_a_terminal(interrupted_lesson):
    note = {"folder": "\x1b[31mred\n", "classes": 2, "update": False, "began": "\x07", "done": 0.5}
    (interrupted_lesson / "unfinished" / "lesson.json").write_text(json.dumps(note))
    done = etag("info", interrupted_lesson)
    assert "\x1b" not in done.stdout + done.stderr
    assert "\x07" not in done.stdout + done.stderr
    assert r"\x1b[31mred\n" in done.stdout
