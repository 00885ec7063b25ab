"""Folders that are split, one level too high, or nested: what is learned from them, and what is asked."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import threading

import pytest
from tests.app.conftest import etag, printed, refused, settings
from tests.data.conftest import write_classes

from etag.app.layouts import WHOLE, find_layout
from etag.core.errors import EtagError
from etag.learner.model_directory import ModelDirectory

SHORT = settings("train.steps=2", "train.base={steps: 2}", generator=False)
RIDGE = ["--method", "ridge", "--from-scratch", *SHORT]


def images(root, *folders, count=5, first=0):
    """Write so many different images into each of these folders; return the root."""
    numbers = range(first, first + count)
    return write_classes(root, *(f"{folder}/{number}.png" for folder in folders for number in numbers), seed=first)


# -- split data sets -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def split_model(tmp_path_factory):
    """A model and the split folder that it learned: train, val and test."""
    home = tmp_path_factory.mktemp("split")
    photos = images(home / "photos", "Train/cat", "Train/dog", "Train/emu", count=6)
    images(photos, "validation/cat", "validation/dog", count=3, first=100)
    images(photos, "test/cat", "test/emu", count=2, first=200)
    done = etag("learn", home / "model", photos, *RIDGE)
    assert done.returncode == 0, done.stderr
    return home / "model", photos, done.stdout


def test_a_split_folder_is_learned_from_train_and_evaluated_on_val(split_model):
    model, photos, out = split_model
    about = ModelDirectory(model).about()
    assert about.classes == ("cat", "dog", "emu"), "neither train nor val is a class"
    assert about.history[0].images == 18, "every image of train"
    assert about.history[0].evaluation.images == 6, "every image of val"
    assert f"'{photos}' is split: train is learned; val is held out, and never learned.\n" in out
    assert f"test is not used: `etag evaluate MODEL {photos / 'test'}` evaluates it.\n" in out
    assert "classes without images in val, which are not tested: emu.\n" in out
    assert "18 images to train on, 6 held out" in out
    assert "emu (not tested: no image of it is held out)" in out
    assert "Then the model learned these images" not in out


def test_the_held_out_images_of_a_split_are_never_learned(split_model, tmp_path):
    """Without a split, the statistics of ridge regression have every image in them; here only those of train."""
    model, photos, _ = split_model
    method, _ = ModelDirectory(model).load_method()
    assert method.statistics.count.tolist() == [6, 6, 6]
    done = etag("learn", tmp_path / "whole", photos / "Train", *RIDGE)
    assert "of 3 held-out images" in done.stdout
    assert "Then the model learned these images, too" in done.stdout
    method, _ = ModelDirectory(tmp_path / "whole").load_method()
    assert method.statistics.count.tolist() == [6, 6, 6]


def test_more_images_of_a_split_folder_are_learned_without_its_val(split_model, tmp_path):
    shutil.copytree(split_model[0], tmp_path / "model")
    more = images(tmp_path / "more", "train/cat", "train/dog", count=2, first=300)
    images(more, "val/cat", "val/dog", count=2, first=400)
    done = etag("learn", tmp_path / "model", more, "--update")
    assert done.returncode == 0, done.stderr
    method, _ = ModelDirectory(tmp_path / "model").load_method()
    assert method.statistics.count.tolist() == [8, 8, 6]


def test_evaluating_a_split_folder_takes_test_or_else_val(split_model, tmp_path):
    model, photos, _ = split_model
    out = etag("evaluate", model, photos).stdout
    assert out.startswith(f"'{photos}' is split: test is evaluated.\n4 images of 2 classes")
    values = printed(etag("evaluate", model, photos, "--json"))
    assert (values["folder"], values["images"]) == (str(photos / "test"), 4)
    val = shutil.copytree(photos, tmp_path / "photos", ignore=shutil.ignore_patterns("test"))
    assert etag("evaluate", model, val).stdout.startswith(f"'{val}' is split: val is evaluated.\n6 images of 2")
    assert "4 images" in etag("evaluate", model, photos / "test").stdout


def test_checking_a_split_folder_checks_all_parts(split_model, tmp_path):
    photos = shutil.copytree(split_model[1], tmp_path / "photos")
    shutil.copy(photos / "Train" / "cat" / "0.png", photos / "validation" / "cat" / "again.png")
    (photos / "test" / "emu" / "bad.png").write_bytes(b"")
    done = etag("check", photos)
    assert done.returncode == 1, done.stderr
    assert f"{photos}: 30 images of 3 classes (train 18, val 7, test 5)\n" in done.stdout
    assert "bad.png: not an image" in done.stdout
    pair = [str(photos / "Train" / "cat" / "0.png"), str(photos / "validation" / "cat" / "again.png")]
    title = "the same content in several parts, so that the accuracy on val or test is too high: 1\n"
    assert f"{title}  {' = '.join(pair)}\n" in done.stdout
    values = json.loads(etag("check", photos, "--json").stdout)
    assert values["copies_across_parts"] == [pair]
    assert values["parts"] == {"train": 18, "val": 7, "test": 5}
    assert values["few"] == [], "the classes of train have six images"


def test_the_classes_of_val_must_be_in_train(tmp_path):
    photos = images(tmp_path, "train/cat", "train/dog", "val/cat", "val/yak", "val/zebra", count=1)
    sentence = refused(etag("learn", tmp_path / "m", photos, "--dry-run"))
    assert f"'{photos / 'val'}' has classes that '{photos / 'train'}' does not have: yak, zebra." in sentence


def test_parts_that_are_there_twice_or_missing(tmp_path):
    photos = images(tmp_path / "twice", "train/cat", "val/cat", "valid/cat", count=1)
    assert "holds 'val' and 'valid', which both mean val: leave only one" in refused(etag("check", photos))
    photos = images(tmp_path / "no train", "val/cat", "val/dog", "test/cat", "test/dog", count=1)
    assert "holds test and val, but no train" in refused(etag("learn", tmp_path / "m", photos))
    photos = images(tmp_path / "others", "train/cat", "val/cat", "birds/crow", count=1)
    sentence = refused(etag("learn", tmp_path / "m", photos))
    assert "holds 'train' and 'val', which look like the parts of one data set, and also 'birds'" in sentence
    assert list(find_layout(photos, nested=True).parts) == [WHOLE], "the user says that all of them are classes"


def test_a_part_without_labels_is_not_used_and_that_is_said(tmp_path):
    photos = images(tmp_path / "photos", "train/cat", "train/dog", "test")
    done = etag("learn", tmp_path / "m", photos, *RIDGE, "--dry-run")
    assert f"'{photos}' is split: train is learned, except for every fifth image.\n" in done.stdout
    assert f"'{photos / 'test'}' is not used: its images have no labels.\n" in done.stdout
    assert "8 images to train on, 2 held out" in done.stdout
    sentence = refused(etag("evaluate", tmp_path / "m", photos))
    assert "is not a model directory" in sentence


def test_train_and_test_can_be_classes_and_are_remarked_on(tmp_path):
    done = etag("learn", tmp_path / "m", images(tmp_path / "photos", "train", "test"), *RIDGE, "--dry-run")
    assert "2 classes: test 5, train 5.\n" in done.stdout
    assert "look like parts of a data set: test and train.\n" in done.stdout


# -- one level too high ----------------------------------------------------------------------------

HIGH = ("animals/cat", "animals/dog")
GROUPS = ("animals/cat", "animals/dog", "plants/rose")


def test_a_folder_one_level_too_high_is_refused_with_the_right_folder(tmp_path, split_model):
    photos = images(tmp_path / "photos", *HIGH)
    sentence = refused(etag("learn", tmp_path / "m", photos))
    assert f"'{photos}' holds one folder, 'animals', with 2 folders of images: pass '{photos / 'animals'}'" in sentence
    assert "--nested" not in sentence, "a first lesson needs two classes"
    assert f"pass '{photos / 'animals'}'" in refused(etag("check", photos))
    assert "or add --nested if 'animals' is a class" in refused(etag("learn", split_model[0], photos))
    moved = shutil.copytree(split_model[1], tmp_path / "up" / "photos")
    sentence = refused(etag("evaluate", split_model[0], tmp_path / "up"))
    assert f"holds one folder, 'photos', with Train, test and validation: pass '{moved}'." in sentence


def test_folders_that_hold_only_folders_may_be_classes_or_not(tmp_path):
    photos = images(tmp_path / "photos", *GROUPS)
    sentence = refused(etag("learn", tmp_path / "m", photos))
    assert "('animals' and 'plants') hold no images themselves, only folders such as 'animals/cat'" in sentence
    assert f"pass one of them, such as '{photos / 'animals'}'" in sentence
    assert "or add --nested if 'animals' and 'plants' are the classes" in sentence
    done = etag("learn", tmp_path / "m", photos, "--nested", *RIDGE, "--dry-run")
    assert "2 classes: animals 10, plants 5.\n" in done.stdout
    assert printed(etag("check", photos, "--nested", "--json"))["classes"] == {"animals": 10, "plants": 5}


def test_class_folders_with_images_and_folders_stay_classes(tmp_path):
    assert find_layout(images(tmp_path / "a", "cat", "cat/2019", "dog/2020", "dog/2021")).parts == {
        WHOLE: tmp_path / "a"
    }
    assert find_layout(images(tmp_path / "b", "cat/images", "dog/images")).parts == {WHOLE: tmp_path / "b"}


def test_parts_whose_class_folders_are_nested(tmp_path):
    photos = images(tmp_path / "photos", "train/animals/cat", "train/plants/rose", "val/animals/cat")
    with pytest.raises(EtagError, match=r"train' \('animals' and 'plants'\) hold no images themselves"):
        find_layout(photos)
    assert list(find_layout(photos, nested=True).parts) == ["train", "val"]


@pytest.mark.parametrize(
    ("folders", "question", "yes"),
    [
        (HIGH, "Are the folders in '{}/animals' the classes?", "animals"),
        (("zoo/animals/cat", "zoo/animals/dog"), "Are the folders in '{}/zoo' the classes?", "zoo/animals"),
        (GROUPS, "Are 'animals' and 'plants' the classes, with all images below them?", "."),
        (("zoo/train/cat", "zoo/val/cat"), "Use '{}/zoo'?", "zoo/train"),
    ],
)
def test_who_can_be_asked_is_asked(tmp_path, folders, question, yes):
    photos, asked = images(tmp_path, *folders), []

    def agree(text):
        asked.append(text)
        return True

    layout = find_layout(photos, ask=agree)
    assert asked[0].endswith(f" {question.format(photos)}")
    assert next(iter(layout.parts.values())) == photos / yes
    with pytest.raises(EtagError, match=r"pass "):
        find_layout(photos, ask=lambda _: False)


def at_a_terminal(answers, *words):
    """Run a command at a terminal, and answer its questions; returns its exit code and everything it printed."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "etag.cli", *map(str, words)]
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, close_fds=True)
    os.close(follower)
    stop = threading.Timer(120, process.kill)  # an unexpected question would wait for ever
    stop.start()
    text, answers = b"", list(answers)
    while True:
        try:
            text += os.read(leader, 4096)
        except OSError:  # the end, on Linux
            break
        if answers and text.endswith(b"[Y/n]: "):
            os.write(leader, answers.pop(0))
    os.close(leader)
    stop.cancel()
    return process.wait(60), re.sub(r"\s+", " ", text.decode())


def test_questions_and_progress_at_a_terminal(tmp_path):
    photos = images(tmp_path / "photos", *(f"zoo/{folder}" for folder in GROUPS))
    (photos / "zoo" / "plants" / "rose" / "bad.png").write_bytes(b"")
    code, text = at_a_terminal([b"y\n", b"y\n"], "learn", tmp_path / "m", photos)
    assert code == 2, text
    assert f"'{photos}' holds one folder, 'zoo', with 2 folders of images. Are the folders in '{photos}/zoo'" in text
    assert "Are 'animals' and 'plants' the classes, with all images below them? [Y/n]: y" in text
    assert "checking images" in text
    assert "error: 1 image file cannot be read: " in text
    assert not (tmp_path / "m").exists()


def test_a_folder_of_images_is_a_class_and_not_a_data_set(tmp_path):
    photos = images(tmp_path / "photos", "cat", "dog")
    sentence = refused(etag("learn", tmp_path / "m", photos / "cat"))
    assert (
        "holds no classes, but 5 images: pass the folder above it if 'cat' is a class, or give the labels" in sentence
    )
