"""Labels from a CSV file, and from the names of files in one folder."""

import os

import pytest
from tests.app.conftest import etag, printed, refused
from tests.app.test_layouts import RIDGE, images

from etag.app.estimator import IncrementalClassifier
from etag.app.labeling import NUMBERED, labeled_by
from etag.core.errors import EtagError
from etag.data.not_read import NotRead
from etag.learner.model_directory import ModelDirectory

ROWS = "path,label\n" + "".join(f"{number}.png,{'cat' if number < 5 else 'dog'}\n" for number in range(10))


@pytest.fixture
def flat(tmp_path):
    """Ten images in one folder."""
    return images(tmp_path, "flat", count=10) / "flat"


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("place", ["beside", "inside"])
def test_labels_of_a_csv_file_are_learned_checked_and_evaluated(flat, tmp_path, place):
    rows = "\ufeffid, Path ,label\n" + "".join(f"{number},{row}\n" for number, row in enumerate(ROWS.split()[1:]))
    labels = write((flat if place == "inside" else tmp_path) / "labels.csv", rows + "\n")
    done = etag("learn", tmp_path / "m", flat, "--labels", labels, *RIDGE)
    assert done.returncode == 0, done.stderr
    assert "2 classes: cat 5, dog 5.\n" in done.stdout
    assert "not read" not in done.stdout
    assert ModelDirectory(tmp_path / "m").about().classes == ("cat", "dog")
    values = printed(etag("evaluate", tmp_path / "m", flat, "--labels", labels, "--json"))
    assert [entry["images"] for entry in values["per_class"]] == [5, 5]
    assert printed(etag("check", flat, "--labels", labels, "--json"))["classes"] == {"cat": 5, "dog": 5}


def test_paths_are_relative_to_the_image_folder_or_else_to_the_file(flat, tmp_path):
    labels = write(tmp_path / "labels.csv", f"path,label\nflat/0.png,a\n1.png,b\n{flat / '2.png'},c\n")
    found = labeled_by(str(labels), flat, NotRead(flat))
    assert found == {"a": [str(flat / "0.png")], "b": [str(flat / "1.png")], "c": [str(flat / "2.png")]}


def test_images_without_a_label_are_counted(flat, tmp_path):
    labels = write(tmp_path / "some labels.csv", "path,label\n0.png,cat\n5.png,dog\n0.png,cat\n")
    (flat / "notes.txt").write_text("")
    out = etag("check", flat, "--labels", labels).stdout
    assert "2 images of 2 classes" in out
    assert "not read: 8 without a label in some labels.csv (such as 1.png), 1 .txt (such as notes.txt)\n" in out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("file,label\n0.png,cat\n", "has no header that names the columns path and label"),
        ("", "has no header"),
        ("path;label\n0.png;cat\n", "separated by commas"),
        ("path,label\n0.png,cat\n0.png,dog\n", "gives 0.png two labels: 'cat' in line 2 and 'dog' in line 3"),
        ("path,label\n0.png,cat\n./0.png,dog\n", "gives ./0.png two labels"),
        ("path,label\na.png,cat\n0.png,dog\nb.png,cat\n", "not found in 'FLAT': a.png (line 2) and b.png (line 4)"),
        ("path,label\n0.png,\n", "line 2 has no label"),
        ("path,label\n0.png\n", "line 2 has no label"),
        ("path,label\n,cat\n", "line 2 has no path"),
        ("path,label\n../../x.png,cat\n", "names '../../x.png', which is not inside 'FLAT'"),
        ("path,label\n/etc/passwd,cat\n", "names '/etc/passwd', which is not inside 'FLAT'"),
        (f"path,label\n0.png,{'x' * 300}\n", "line 2 has a label of more than 255 characters"),
        (f"path,label\n0.png,{'x' * 200_000}\n", "cannot be read as CSV"),
        ("path,label\n0\0.png,cat\n", "0"),
        ("path,label\n0.png,cat\n1.png,cat\n", "holds 1 class: at least 2 classes are needed"),
        ("path,label\n0.png,cat\n1.png,Cat\n", "'Cat' and 'cat' differ in upper and lower case only"),
    ],
)
def test_a_csv_file_that_cannot_be_used(flat, tmp_path, text, says):
    labels = write(tmp_path / "labels.csv", text)
    sentence = refused(etag("learn", tmp_path / "m", flat, "--labels", labels))
    assert says.replace("FLAT", str(flat)) in sentence


def test_a_csv_file_that_is_no_text_or_not_there(flat, tmp_path):
    (tmp_path / "binary.csv").write_bytes(b"path,label\n0.png,\xff\n")
    assert "not text in UTF-8" in refused(etag("check", flat, "--labels", tmp_path / "binary.csv"))
    assert "there is no file nowhere.csv" in refused(etag("check", flat, "--labels", "nowhere.csv"))
    os.mkfifo(tmp_path / "pipe.csv")
    assert "pipe.csv cannot be read" in refused(etag("check", flat, "--labels", tmp_path / "pipe.csv"))


@pytest.mark.parametrize(
    ("stem", "label"),
    [
        ("class-001", "class"),
        ("class_2", "class"),
        ("class (3)", "class"),
        ("class12", "class"),
        ("two words 7", "two words"),
        ("v1.2-3", "v1.2"),
        ("a-1-2", "a-1"),
    ],
)
def test_the_label_in_the_name_of_a_file(stem, label):
    assert NUMBERED.fullmatch(stem)[1] == label


def test_labels_from_the_names_of_files(tmp_path):
    names = [f"{kind}{end}.png" for kind in ("cat", "red dog") for end in ("-001", "_2", " (3)", "4", ".5")]
    flat = images(tmp_path, "flat", count=10) / "flat"
    for number, name in enumerate(names):
        (flat / f"{number}.png").rename(flat / name)
    done = etag("learn", tmp_path / "m", flat, "--labels", "names", *RIDGE)
    assert done.returncode == 0, done.stderr
    assert "2 classes: cat 5, red dog 5.\n" in done.stdout
    assert printed(etag("evaluate", tmp_path / "m", flat, "--labels", "names", "--json"))["images"] == 10
    images(flat, ".", count=2)
    (flat / "portrait.png").write_bytes((flat / "0.png").read_bytes())
    sentence = refused(etag("check", flat, "--labels", "names"))
    assert f"but '{flat}' holds 0.png, 1.png and portrait.png: rename the files" in sentence
    with pytest.raises(EtagError, match="but 5 are in folders below it"):
        labeled_by("names", images(tmp_path / "deep", "cat"), NotRead())


def test_the_estimator_takes_labels_too(flat, tmp_path):
    labels = write(tmp_path / "labels.csv", ROWS)
    few = {"method.generator.train.steps": 2, "method.generator.feature_passes": 1, "train.base": {"steps": 2}}
    model = IncrementalClassifier(from_scratch=True, size=8, width=4, steps=2, settings=few).fit(flat, labels=labels)
    assert model.classes_.tolist() == ["cat", "dog"]
    assert 0 <= model.score(flat, labels=str(labels)) <= 1
    more = images(tmp_path, "more", count=3, first=50) / "more"
    for number in (50, 51, 52):
        (more / f"{number}.png").rename(more / f"emu-{number}.png")
    model.partial_fit(more, labels="names")
    assert model.classes_.tolist() == ["cat", "dog", "emu"]
