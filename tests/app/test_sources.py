"""Data sources as plain folders."""

import numpy as np
import pytest
from PIL import Image
from tests.app.conftest import etag
from tests.data.sources.test_mnist import write as write_mnist

from etag.app.sources import chosen_classes, source_folders
from etag.core.errors import EtagError
from etag.data.source import SOURCES, DataOptions


def test_what_is_written_is_what_the_source_holds(tmp_path):
    done = etag("data", "folders", "digits", tmp_path / "out", "--classes", "3-4,7", "--per-class", 5)
    assert done.stdout == f"{tmp_path / 'out'}: 15 images of 3 classes\n"
    held = SOURCES["digits"].open(DataOptions(name="digits")).train
    for name in ("3", "4", "7"):
        files = sorted((tmp_path / "out" / name).iterdir())
        rows = (held.labels == int(name)).nonzero().flatten()[:5]
        read = np.stack([np.asarray(Image.open(file)) for file in files])
        np.testing.assert_array_equal(read, held.pixels[rows, 0].numpy())


def test_colors_and_the_test_part(tmp_path, shared_data, monkeypatch):
    monkeypatch.setenv("ETAG_DATA", str(shared_data))
    written = source_folders("cifar100", tmp_path / "out", "apple", 2, "test")
    assert written == (2, 1)
    assert Image.open(tmp_path / "out" / "apple" / "00000.png").mode == "RGB"


@pytest.mark.parametrize(
    ("text", "numbers"), [("a", [0]), ("b-c", [1]), ("0,2", [0, 2]), ("1-2", [1, 2]), ("2,0-1", [2, 0, 1])]
)
def test_classes_by_name_and_number(text, numbers):
    assert list(chosen_classes(text, ["a", "b-c", "d"])) == numbers


@pytest.mark.parametrize("text", ["x", "3", "2-5", "2-1", "", "-1", "a,"])
def test_classes_that_are_not_there(text):
    with pytest.raises(EtagError, match="class"):
        chosen_classes(text, ["a", "b-c", "d"])


def test_what_can_not_be_written(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    refused = etag("data", "folders", "digits", tmp_path / "full")
    assert refused.returncode == 2
    assert "exists already" in refused.stderr
    refused = etag("data", "folders", "digist", tmp_path / "out")
    assert "did you mean 'digits'" in refused.stderr


def test_the_files_may_be_anywhere(tmp_path, monkeypatch):
    monkeypatch.delenv("ETAG_DATA", raising=False)
    images = write_mnist(tmp_path / "mine")
    done = etag("data", "folders", "mnist", tmp_path / "out", "--path", tmp_path / "mine", "--classes", "3-4")
    assert done.stdout == f"{tmp_path / 'out'}: 2 images of 2 classes\n", done.stderr
    (written,) = (tmp_path / "out" / "3").iterdir()
    np.testing.assert_array_equal(np.asarray(Image.open(written)), images[3])


def test_a_class_that_is_not_there_reminds_of_one_that_is():
    with pytest.raises(EtagError, match="unknown class 'aple': did you mean 'apple'"):
        chosen_classes("aple", ["apple", "bear"])
