"""Bad input and interruptions: one sentence, exit code 2, and the model unchanged."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image
from tests.app.conftest import etag, printed, refused, settings

from etag.app import lessons
from etag.data.folders import list_images
from etag.learner.model_directory import ModelDirectory
from etag.learner.versions import seal


def class_folders(home, names, images=3):
    """Folders with these names, of plain images."""
    for number, name in enumerate(names):
        (home / name).mkdir(parents=True)
        for place in range(images):
            Image.new("RGB", (8, 8), (40 * number % 256, 30 * place, 90)).save(home / name / f"{place}.png")
    return home


def test_directories_that_are_not_models(tmp_path, digits_folder):
    folder = digits_folder("first", (0, 1, 2))
    assert "is not a model directory: `etag learn` creates one" in refused(
        etag("predict", tmp_path / "nothing", folder)
    )
    assert "is not a model directory" in refused(etag("info", tmp_path))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    assert "exists and is not a model directory" in refused(etag("learn", tmp_path / "full", folder, *settings()))
    assert (tmp_path / "full" / "letter.txt").read_text() == "dear"
    assert "yet to update: learn classes first" in refused(etag("learn", tmp_path / "new", folder, "--update"))


def test_folders_that_hold_nothing_to_learn(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "holds no classes" in refused(etag("learn", tmp_path / "m", tmp_path / "empty"))
    assert "cannot be read" in refused(etag("learn", tmp_path / "m", tmp_path / "missing"))
    assert "single class" in refused(etag("learn", tmp_path / "m", class_folders(tmp_path / "one", ["cat"])))
    bad = class_folders(tmp_path / "bad", ["cat", "dog"])
    (bad / "cat" / "1.png").write_bytes(b"not an image")
    assert "1 image file cannot be read" in refused(etag("learn", tmp_path / "m", bad))


def test_unusual_names_are_stored_unchanged(tmp_path):
    names = ["with space", "naïve 猫", "a'b\"c", "-dash", "x" * 200, "semi;colon,comma"]
    folder = class_folders(tmp_path / "images", names, images=4)
    done = etag("learn", tmp_path / "m", folder, *settings("train.steps=2", "train.base={steps: 2}"))
    assert done.returncode == 0, done.stderr
    assert sorted(printed(etag("info", tmp_path / "m", "--json"))["classes"]) == sorted(names)
    table = etag("predict", tmp_path / "m", folder, "--format", "csv").stdout
    assert table.count("\n") == 1 + 4 * len(names)


def test_names_that_differ_in_case_only(tmp_path, copied):
    folder = class_folders(tmp_path / "images", ["Cat", "cat"])
    assert "differ in upper and lower case only" in refused(etag("learn", tmp_path / "m", folder))
    folder = class_folders(tmp_path / "other", ["Digit 1"])
    assert "differ in upper and lower case only" in refused(etag("learn", copied, folder))


@pytest.mark.slow
def test_a_class_of_ten_thousand_and_one_of_five(tmp_path):
    folder = class_folders(tmp_path / "images", ["rare", "usual"], images=5)
    one = (folder / "usual" / "0.png").read_bytes()
    for place in range(5, 10_000):
        (folder / "usual" / f"{place}.png").write_bytes(one)
    done = etag("learn", tmp_path / "m", folder, *settings("train.steps=2", "train.base={steps: 2}"))
    assert done.returncode == 0, done.stderr
    assert "add images if you can: rare (5 images, the largest class has 10000)." in done.stdout
    assert "8004 images to train on, 2001 held out" in done.stdout


def test_images_of_one_pixel_and_of_far_too_many(tmp_path):
    folder = class_folders(tmp_path / "images", ["cat", "dog"], images=6)
    Image.new("RGB", (1, 1), "red").save(folder / "cat" / "one.png")
    words = settings("train.steps=2", "train.base={steps: 2}")
    done = etag("learn", tmp_path / "m", folder, *words)
    assert done.returncode == 0, done.stderr
    Image.new("1", (20_000, 20_000)).save(folder / "cat" / "vast.png")
    assert "vast.png (far too large)" in refused(etag("learn", tmp_path / "n", folder, *words))
    asked = etag("predict", tmp_path / "m", folder / "cat" / "one.png", folder / "cat" / "vast.png")
    assert asked.returncode == 1
    assert "vast.png cannot be read: far too large." in asked.stderr
    assert asked.stdout.count("\n") == 1


@pytest.mark.parametrize("memory", [0, 2048])
def test_a_folder_that_changes_while_it_is_read(tmp_path, monkeypatch, memory):
    folder = class_folders(tmp_path / "images", ["cat", "dog"], images=5)
    moment = "lesson_images" if memory else "learn"  # without memory for the images, files are read during training
    usual = getattr(lessons, moment)

    def changed(*words, **named):
        (folder / "cat" / "1.png").unlink()
        return usual(*words, **named)

    monkeypatch.setattr(lessons, moment, changed)
    words = settings("train.steps=2", "train.base={steps: 2}", f"data.memory={memory}")
    assert "1.png" in refused(etag("learn", tmp_path / "m", folder, *words))
    assert not ModelDirectory(tmp_path / "m").exists()


@pytest.mark.parametrize(
    "words", [["--method", "gfr"], ["--seed", "3"], ["--set", "model.width=8"], ["--set", "data.size=16"]]
)
def test_a_model_keeps_what_it_started_with(copied, digits_folder, words):
    assert "cannot be set now: the first lesson decides" in refused(
        etag("learn", copied, digits_folder("third", (5, 6)), *words)
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--method", "joint"], "needs the images of all lessons"),
        (["--from-scratch", "--set", "method.head.growth=fixed"], "how many classes will come"),
        (["--method", "etga"], "did you mean 'etag'"),
        (["--set", "train.setps=3"], "did you mean 'steps'"),
        (["--weights", "nowhere.pth"], "nowhere.pth"),
    ],
)
def test_choices_that_a_model_cannot_have(tmp_path, digits_folder, words, says):
    assert says in refused(etag("learn", tmp_path / "m", digits_folder("first", (0, 1, 2)), *words))
    assert not ModelDirectory(tmp_path / "m").exists()


@pytest.mark.parametrize(("number", "advice"), [(99, "update etag"), (1, "learn the classes again with this etag")])
@pytest.mark.parametrize("command", ["predict", "info", "learn", "export"])
def test_a_model_of_another_format(copied, digits_folder, tmp_path, number, advice, command):
    file = copied / "versions" / "2" / "about.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": number}))
    more = {"info": [], "export": ["--torch", tmp_path / "x.pt2"]}.get(command, [digits_folder("third", (5, 6))])
    message = refused(etag(command, copied, *more))
    assert f"has format {number}, and this version of etag reads format 3: {advice}." in message


def test_a_model_of_the_first_format_has_other_files_and_keys(tmp_path, digits_folder):
    (tmp_path / "old" / "versions" / "1").mkdir(parents=True)
    (tmp_path / "old" / "current").write_text("1")
    about = {"format": 1, "classes": ["a", "b"], "task_sizes": [2], "config": {"method": {"name": "etag"}}}
    (tmp_path / "old" / "versions" / "1" / "about.json").write_text(json.dumps(about))
    (tmp_path / "old" / "versions" / "1" / "predictor.safetensors").write_bytes(b"")
    folder = digits_folder("third", (5, 6))
    for words in (
        ["predict", tmp_path / "old", folder],
        ["learn", tmp_path / "old", folder],
        ["info", tmp_path / "old"],
    ):
        assert "has format 1, and this version of etag reads format 3" in refused(etag(*words))


def damage(path):
    """Overwrite the second half of a file with zeros."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = b"\0" * (len(data) - len(data) // 2)
    path.write_bytes(data)


@pytest.mark.parametrize("part", ["about", "backbone", "rule"])
def test_a_damaged_model(copied, digits_folder, part):
    file = copied / "versions" / "2" / "about.json"
    names = json.loads(file.read_text())["tensors"]["classifier"]
    damage(file if part == "about" else copied / "tensors" / f"{names[part]}.safetensors")
    assert "cannot be read" in refused(etag("predict", copied, digits_folder("first", (0, 1, 2))))


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "nothing", 7, None])
def test_tensor_names_stay_inside_the_directory(copied, digits_folder, name):
    file = copied / "versions" / "2" / "about.json"
    content = json.loads(file.read_text())
    content["tensors"]["classifier"]["rule"] = name
    content = seal(content)
    file.write_text(json.dumps(content))
    (copied / "current").write_text(f"2 {content['checksum']}")
    assert "cannot be read" in refused(etag("predict", copied, digits_folder("first", (0, 1, 2))))


def test_a_disk_that_may_not_be_written(tmp_path, digits_folder):
    if os.geteuid() == 0:
        (tmp_path / "file").write_text("")
        target = tmp_path / "file" / "model"  # root may write everywhere but below a file
    else:
        (tmp_path / "closed").mkdir(mode=0o500)
        target = tmp_path / "closed" / "model"
    assert "cannot be written" in refused(etag("learn", target, digits_folder("first", (0, 1, 2))))


def test_evaluation_on_classes_that_it_does_not_know(learned, digits_folder, tmp_path):
    assert "knows none of the classes" in refused(etag("evaluate", learned, digits_folder("third", (5, 6))))
    assert "no file matches" in refused(etag("predict", learned, str(tmp_path / "*.png")))
    assert "choose what to write" in refused(etag("export", learned))


def begin_learning(model, folder):
    return subprocess.Popen(
        [sys.executable, "-m", "etag.cli", "learn", str(model), str(folder), "--set", "train.steps=200"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_work(model, process):
    while not (model / "unfinished").is_dir() and process.poll() is None:
        time.sleep(0.02)


@pytest.mark.slow
def test_two_at_once(copied, digits_folder):
    folder = digits_folder("third", (5, 6))
    first = begin_learning(copied, folder)
    wait_for_work(copied, first)
    assert "another process is changing" in refused(etag("learn", copied, folder))
    assert etag("predict", copied, folder).returncode == 0, "predicting works meanwhile"
    assert first.wait(timeout=120) == 0


@pytest.mark.slow
def test_an_interrupted_lesson_is_resumed_and_the_model_predicts_as_before_meanwhile(copied, digits_folder):
    folder = digits_folder("third", (5, 6))
    before = etag("predict", copied, folder, "--format", "csv").stdout
    process = begin_learning(copied, folder)
    wait_for_work(copied, process)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "is unchanged; the same command continues" in errors
    assert etag("predict", copied, folder, "--format", "csv").stdout == before
    done = etag("learn", copied, folder, "--set", "train.steps=200")
    assert done.returncode == 0, done.stderr
    assert "resuming task 3 at" in done.stdout
    assert len(printed(etag("info", copied, "--json"))["classes"]) == 7


@pytest.mark.slow
def test_killed_at_any_moment_it_predicts(copied, digits_folder):
    """Ten kills at random moments of one lesson, which is finished afterwards."""
    folder, chance = digits_folder("third", (5, 6)), random.Random(0)
    files = list_images(folder)[:2]
    before = etag("predict", copied, *files, "--format", "csv").stdout
    for _ in range(10):
        process = begin_learning(copied, folder)
        wait_for_work(copied, process)
        time.sleep(chance.uniform(0, 2.5))
        process.kill()
        process.communicate()
        classifier, about = ModelDirectory(copied).load_classifier()
        assert len(about.classes) in (5, 7)
        if len(about.classes) == 7:
            break
        assert not classifier.training
    if len(about.classes) == 5:
        assert etag("predict", copied, *files, "--format", "csv").stdout == before
        done = etag("learn", copied, folder, "--set", "train.steps=200")
        assert done.returncode == 0, done.stderr
    assert len(ModelDirectory(copied).about().classes) == 7
    assert not list(Path(copied).rglob("*.part"))
