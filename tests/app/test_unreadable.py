"""Damaged files, and files that are no images: nothing is left out without a word."""

import json
import shutil

import pytest
from PIL import Image
from tests.app.conftest import etag, printed, refused
from tests.app.test_layouts import RIDGE, images

from etag.app.estimator import IncrementalClassifier
from etag.core.errors import EtagError
from etag.data import folders, formats
from etag.learner.model_directory import ModelDirectory


@pytest.fixture
def photos(tmp_path, shared_data):
    """Photos of two kinds of flowers, of which two are cut off."""
    for kind in ("daisy", "iris"):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for file in sorted((shared_data / "flowers12" / "train" / kind).iterdir())[:6]:
            shutil.copy(file, tmp_path / "photos" / kind)
    for kind, place, cut in (("daisy", 1, 0.5), ("iris", 3, 0.99)):
        file = sorted((tmp_path / "photos" / kind).iterdir())[place]
        file.write_bytes(file.read_bytes()[: int(cut * file.stat().st_size)])
    return tmp_path / "photos"


def damaged(photos):
    return [str(sorted((photos / kind).iterdir())[place]) for kind, place in (("daisy", 1), ("iris", 3))]


@pytest.mark.parametrize("memory", [0, 2048])
def test_all_damaged_files_are_listed_before_training_and_can_be_skipped(photos, tmp_path, memory):
    words = ["learn", tmp_path / "m", photos, *RIDGE, "--set", f"data.memory={memory}"]
    sentence = refused(etag(*words))
    assert "2 image files cannot be read" in sentence
    assert all(f"{file} (damaged: image file is truncated" in sentence for file in damaged(photos))
    assert sentence.endswith("replace or remove them, or add --skip-damaged.\n")
    assert not (tmp_path / "m").exists()
    done = etag(*words, "--skip-damaged")
    assert done.returncode == 0, done.stderr
    assert "left out, because they cannot be read: 2 of 12 files: " in done.stdout
    assert all(f"{file} (damaged" in done.stdout for file in damaged(photos))
    assert "2 classes: daisy 5, iris 5.\n" in done.stdout
    method, _ = ModelDirectory(tmp_path / "m").load_method()
    assert method.statistics.count.tolist() == [5, 5]


def test_a_class_of_damaged_images_only(photos, tmp_path):
    (photos / "rose").mkdir()
    (photos / "rose" / "1.jpg").write_bytes(b"")
    sentence = refused(etag("learn", tmp_path / "m", photos, "--skip-damaged"))
    assert "every image of rose is damaged" in sentence


def test_a_wrong_option_is_refused_before_files_are_decoded(photos, tmp_path):
    assert "did you mean 'steps'" in refused(etag("learn", tmp_path / "m", photos, "--set", "train.setps=3"))


def test_the_check_finds_truncated_photos(photos):
    values = json.loads(etag("check", photos, "--json").stdout)
    assert list(values["unreadable"]) == damaged(photos)
    assert json.loads(etag("check", photos, "--json", "--workers", 2).stdout) == values


def test_the_estimator_lists_damaged_files_and_warns_of_others(photos):
    with pytest.raises(EtagError, match="2 image files cannot be read"):
        IncrementalClassifier(from_scratch=True).fit(photos)
    for file in damaged(photos):
        shutil.copy(photos / "iris" / sorted(photos.joinpath("iris").iterdir())[0].name, file)
    (photos / "daisy" / "clip.mp4").write_bytes(b"")
    few = {"method.generator.train.steps": 2, "method.generator.feature_passes": 1, "train.base": {"steps": 2}}
    model = IncrementalClassifier(from_scratch=True, size=8, width=4, steps=2, settings=few)
    with pytest.warns(UserWarning, match=r"^not read: 1 .mp4 \(such as daisy/clip.mp4\)$"):
        model.fit(photos)
    with pytest.warns(UserWarning, match="clip.mp4"):
        assert len(model.predict(photos)) == 12


def test_every_command_counts_what_it_does_not_read(tmp_path):
    photos = images(tmp_path / "photos", "cat", "dog")
    for name in ("cat/a.mp4", "dog/b.MP4", "dog/c.psd", "notes.txt", "cat/scan", "Thumbs.db", "cat/.hidden"):
        (photos / name).write_bytes(b"")
    line = "not read: 2 .mp4 (such as cat/a.mp4), 1 .txt (such as notes.txt), 1 without an ending (such as cat/scan), "
    line += "1 .psd (such as dog/c.psd)"
    learned = etag("learn", tmp_path / "m", photos, *RIDGE)
    assert learned.returncode == 0, learned.stderr
    for out in (learned.stdout, etag("check", photos).stdout, etag("evaluate", tmp_path / "m", photos).stdout):
        parts = next(row for row in out.splitlines() if row.startswith("not read"))
        assert sorted(parts.removeprefix("not read: ").split(", ")) == sorted(
            line.removeprefix("not read: ").split(", ")
        )
    for words in (["check", photos], ["evaluate", tmp_path / "m", photos]):
        kinds = printed(etag(*words, "--json"))["not_read"]
        assert {"kind": ".mp4", "count": 2, "example": "cat/a.mp4"} in kinds
    done = etag("predict", tmp_path / "m", photos, "--format", "csv")
    assert done.stdout.count("\n") == 11, "only predictions are on standard output"
    assert f"2 .mp4 (such as {photos / 'cat' / 'a.mp4'})" in done.stderr
    assert done.returncode == 0
    unknown = etag("evaluate", tmp_path / "m", photos, "--unknown", photos / "cat").stdout
    assert f"'{photos / 'cat'}': not read: 1 .mp4" in unknown


def test_heic_without_its_extra_is_counted_with_the_command_that_installs_it(tmp_path, monkeypatch):
    photos = images(tmp_path / "photos", "cat", "dog")
    for name in ("cat/1.HEIC", "cat/2.heic"):
        (photos / name).write_bytes(b"")
    for module in (formats, folders):
        monkeypatch.setattr(module, "ENDINGS", formats.ENDINGS - {".heic", ".heif"})
    hint = "not read: 2 .heic (such as cat/1.HEIC; to read them: pip install 'etag-cil[heic]')\n"
    assert hint in etag("check", photos).stdout
    (photos / "dog").rename(tmp_path / "dog")
    (photos / "emu").mkdir()
    (photos / "emu" / "1.heic").write_bytes(b"")
    assert "pip install 'etag-cil[heic]'" in refused(etag("learn", tmp_path / "m", photos)), "a class of HEIC only"


def test_heic_and_tiff_are_learned(tmp_path):
    pytest.importorskip("pillow_heif").register_heif_opener()
    for number, kind in enumerate(("cat", "dog")):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for place, ending in enumerate(("heic", "tif", "gif", "png", "webp")):
            picture = Image.new("RGB", (64, 64), (40 * place, 200 * number, 90))
            picture.save(tmp_path / "photos" / kind / f"{place}.{ending}", "HEIF" if ending == "heic" else None)
    done = etag("learn", tmp_path / "m", tmp_path / "photos", *RIDGE)
    assert done.returncode == 0, done.stderr
    assert "2 classes: cat 5, dog 5.\n" in done.stdout
    assert etag("predict", tmp_path / "m", tmp_path / "photos").stdout.count("\n") == 10


def test_predicting_where_there_is_no_image(learned, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("dear")
    assert f"there are no images in '{tmp_path / 'empty'}'" in refused(etag("predict", learned, tmp_path / "empty"))
    assert "no image was given" in refused(etag("predict", learned, stdin="\n"))
    (tmp_path / "empty" / "a.mp4").write_bytes(b"")
    assert "(not read: 1 .mp4 (such as" in refused(etag("predict", learned, tmp_path / "empty"))
    for form in ("table", "csv", "json"):
        done = etag("predict", learned, "nosuch.jpg", "--format", form)
        assert refused(done) == "error: nosuch.jpg cannot be read: file not found.\n"
        assert done.stdout == ""
    sentence = refused(etag("predict", learned, "nosuch.jpg", tmp_path / "notes.txt"))
    assert "none of these 2 files can be read: nosuch.jpg (file not found), " in sentence
    assert "notes.txt (not an image)." in sentence
