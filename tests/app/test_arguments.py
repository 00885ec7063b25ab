"""Arguments in the wrong order."""

from tests.app.conftest import etag, refused

from etag.learner.model_directory import ModelDirectory


def test_swapped_arguments_are_recognized(learned, digits_folder, tmp_path):
    folder = digits_folder("third", (5, 6))
    for command in ("learn", "evaluate", "predict"):
        sentence = refused(etag(command, folder, learned))
        assert f"'{learned}' is a model directory, and '{folder}' is not" in sentence
        assert sentence.endswith(f"try `etag {command} {learned} {folder}`.\n")
    sentence = refused(etag("learn", folder, tmp_path / "new"))
    assert f"'{folder}' holds images, and there is no '{tmp_path / 'new'}'" in sentence
    assert sentence.endswith(f"try `etag learn {tmp_path / 'new'} {folder}`.\n")
    assert not ModelDirectory(folder).exists()
    assert not (tmp_path / "new").exists()


def test_a_model_in_place_of_images(learned, tmp_path):
    for words in (
        ["learn", learned],
        ["learn", tmp_path / "new"],
        ["check"],
        ["evaluate", learned],
        ["predict", learned],
    ):
        sentence = refused(etag(*words, learned))
        assert f"'{learned}' is a model directory: `etag {words[0]}` needs images here." in sentence
