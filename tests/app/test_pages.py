"""The page of a lesson, and that of an evaluation."""

import re
import shutil
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest
from tests.app.conftest import etag, printed, refused

from etag.data.folders import list_images
from etag.learner.model_directory import ModelDirectory


def text_of(page):
    """The words of a page, without tags."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page.read_text().split("</style>")[1])).split())


def links(page):
    """The image files that a page links to."""
    sources = re.findall(r'<img src="([^"]+)" alt="Image of', page.read_text())
    return [(page.parent / unquote(unescape(source))).resolve() for source in sources]


def test_a_lesson_has_a_page_with_classes_confusion_mistakes_curves_and_time(copied, digits_folder):
    folder = digits_folder("third", (5, 6))
    done = etag("learn", copied, folder, "--set", "train.steps=40")
    assert done.returncode == 0, done.stderr
    page = copied / "pages" / "lesson-3.html"
    assert f"page of the lesson: {page}" in done.stdout
    words, lesson = text_of(page), ModelDirectory(copied).about().history[-1]
    assert "Lesson 3 of model" in words
    assert f"{lesson.evaluation.accuracy:.1%} of 10 held-out images" in words
    for name in lesson.classes:
        assert name in words
    assert "Earlier lessons When they were learned." in words
    assert "1 digit 0, digit 1 and digit 2" in words
    assert "Only this lesson's classes have images" in words
    for phase in ("solver", "generator"):
        assert f"Loss terms of phase “{phase}”" in words
    assert "Share of the training images of a step that the network classified correctly." in words
    found = links(page)
    assert len(found) == round(10 * (1 - lesson.evaluation.accuracy))
    assert set(found) <= {Path(file).resolve() for file in list_images(folder)}


def test_no_image_is_in_the_model(copied, digits_folder):
    """The page links to the images: their bytes are not in it."""
    assert etag("learn", copied, digits_folder("third", (5, 6)), "--set", "train.steps=4").returncode == 0
    files = [file.read_bytes() for file in copied.rglob("*") if file.is_file()]
    for image in list_images(digits_folder("third", (5, 6))):
        data = Path(image).read_bytes()
        assert not any(data in file for file in files)
    assert "contains none of them" in text_of(copied / "pages" / "lesson-3.html")


def test_the_page_of_an_update_has_before_and_after(copied, digits_folder):
    more = digits_folder("more", (1, 4), first=40, count=30)
    assert etag("learn", copied, more, "--update").returncode == 0
    words = text_of(copied / "pages" / "lesson-3.html")
    assert "Before (%)" in words
    assert "Other classes On features that were generated before the update" in words


def test_with_a_users_own_images_it_has_the_true_accuracy(copied, digits_folder):
    labeled = digits_folder("labeled", range(7), first=100, count=20)
    words = ["--set", "train.steps=4", "--evaluate", labeled]
    assert etag("learn", copied, digits_folder("third", (5, 6)), *words).returncode == 0
    assert "By lesson On these images." in text_of(copied / "pages" / "lesson-3.html")


def test_no_page_on_request_and_none_is_left_of_a_forgotten_class(copied, digits_folder):
    words = ["--set", "train.steps=4"]
    assert etag("learn", copied, digits_folder("third", (5, 6)), *words, "--no-page").returncode == 0
    assert not (copied / "pages" / "lesson-3.html").exists()
    assert etag("learn", copied, digits_folder("fourth", (7,)), *words).returncode == 0
    assert (copied / "pages" / "lesson-4.html").exists()
    assert etag("forget", copied, "digit 1").returncode == 0
    assert not (copied / "pages").exists()


def test_a_page_that_cannot_be_written_does_not_harm_the_lesson(copied, digits_folder):
    shutil.rmtree(copied / "pages")
    (copied / "pages").write_text("in the way")
    done = etag("learn", copied, digits_folder("third", (5, 6)), "--set", "train.steps=4")
    assert done.returncode == 0, done.stderr
    assert "the lesson is learned, but its page could not be written: " in done.stdout
    assert ModelDirectory(copied).version == 3


def test_names_cannot_inject_anything(copied, digits_folder, tmp_path):
    hostile = "<script>alert(1)<|script>"
    source = digits_folder("third", (5, 6))
    (tmp_path / "new" / hostile).mkdir(parents=True)
    for file in list_images(source)[:20]:
        (tmp_path / "new" / hostile / f"a'\"<b>{Path(file).name}").write_bytes(Path(file).read_bytes())
    assert etag("learn", copied, tmp_path / "new", "--set", "train.steps=4").returncode == 0
    page = (copied / "pages" / "lesson-3.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_an_evaluation_has_a_page_with_the_surest_mistakes(learned, digits_folder, tmp_path):
    folder = digits_folder("test", range(5), first=100, count=20)
    done = etag("evaluate", learned, folder, "--out", tmp_path / "page.html")
    assert f"{tmp_path / 'page.html'}: written, the page." in done.stdout
    found = printed(etag("evaluate", learned, folder, "--json"))
    assert links(tmp_path / "page.html") == [Path(mistake["path"]).resolve() for mistake in found["mistakes"]]
    words = text_of(tmp_path / "page.html")
    assert f"{found['accuracy']:.1%} of 100 images" in words
    assert "By lesson" in words
    assert "must end in" in refused(etag("evaluate", learned, folder, "--out", tmp_path / "page.doc"))


@pytest.mark.parametrize("name", ["猫", "кошка"])
def test_names_that_the_font_of_the_picture_lacks_are_explained(learned, digits_folder, tmp_path, copied, name):
    assert etag("rename", copied, "digit 1", name).returncode == 0
    images = tmp_path / "images"
    (images / name).mkdir(parents=True)
    for file in list_images(digits_folder("test", range(5), first=100, count=20) / "digit 1"):
        (images / name / Path(file).name).write_bytes(Path(file).read_bytes())
    assert etag("evaluate", copied, images, "--out", tmp_path / "page.html").returncode == 0
    words = text_of(tmp_path / "page.html")
    assert (f"Numbers in the picture: 1 is {name}." in words) == (name == "猫"), "Cyrillic letters can be drawn"
