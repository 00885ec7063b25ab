"""Rejecting images of unknown classes: one decision for the command line, evaluation and Python."""

import json
import shutil

import pytest
import torch
from tests.app.conftest import etag, printed, refused

from etag import IncrementalClassifier
from etag.app.predicting import is_rejected, predict_files, predict_pixels, unlabeled_images
from etag.data.folders import list_images
from etag.learner.model_directory import ModelDirectory
from etag.learner.pretrained import default_is_installed

KINDS = (("known", (0, 1, 2)), ("unknown", (7, 8)))


def rejected_by_predict(model, folder):
    """For each image of a folder, whether `etag predict` names no class."""
    done = etag("predict", model, folder, "--format", "json", "--reject")
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["rejected"] for line in done.stdout.splitlines()]


def share(values):
    return sum(values) / len(values)


@pytest.mark.parametrize("model", ["learned", "with_statistics"])
def test_all_ways_to_ask_agree(request, digits_folder, model):
    model = request.getfixturevalue(model)
    known, unknown = (digits_folder(f"{name} to reject", digits, first=130, count=40) for name, digits in KINDS)
    classifier, about = ModelDirectory(model).load_classifier()
    found = printed(etag("evaluate", model, known, "--unknown", unknown, "--json"))
    for folder, key in ((known, "rejected"), (unknown, "unknown_rejected")):
        rejected = rejected_by_predict(model, folder)
        assert share(rejected) == pytest.approx(found[key])
        assert IncrementalClassifier.load(model).is_rejected(folder).tolist() == rejected
        pixels = unlabeled_images(list_images(folder), about, 1).in_memory().pixels
        probability, familiarity = predict_pixels(classifier, about, pixels)
        assert is_rejected(about, familiarity).tolist() == rejected
        if classifier.familiarity is None:
            assert torch.equal(familiarity, probability.amax(1)), "the highest probability"
    text = etag("evaluate", model, known, "--unknown", unknown).stdout
    assert (
        f"rejected as of no known class: {found['rejected']:.1%} of known images, "
        f"and {found['unknown_rejected']:.1%} of" in text
    )
    assert "of unknown ones" not in etag("evaluate", model, known).stdout


def test_images_are_rejected_by_default_only_where_class_statistics_tell(learned, with_statistics, digits_folder):
    folder = digits_folder("unknown to reject", (7, 8), first=130, count=40)
    for model, expected in ((learned, False), (with_statistics, True)):
        lines = etag("predict", model, folder, "--format", "json").stdout.splitlines()
        assert any(json.loads(line)["rejected"] for line in lines) == expected


def test_it_survives_saving_and_stripping(with_statistics, digits_folder, tmp_path):
    folder = digits_folder("known to reject", (0, 1, 2), first=130, count=40)
    expected = rejected_by_predict(with_statistics, folder)
    shutil.copytree(with_statistics, tmp_path / "stripped")
    IncrementalClassifier.load(with_statistics).save(tmp_path / "saved")
    assert etag("models", "strip", tmp_path / "stripped").returncode == 0
    assert len(list((tmp_path / "stripped" / "tensors").iterdir())) == 3, "backbone, prediction rule, familiarity"
    pixels = torch.randint(0, 256, (5, 3, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
    _, before = predict_pixels(*ModelDirectory(with_statistics).load_classifier(), pixels)
    for name in ("stripped", "saved"):
        assert rejected_by_predict(tmp_path / name, folder) == expected
        assert torch.equal(predict_pixels(*ModelDirectory(tmp_path / name).load_classifier(), pixels)[1], before)


def test_info_says_where_it_comes_from(learned, with_statistics):
    for model, source in ((learned, "highest probability"), (with_statistics, "class statistics")):
        threshold = ModelDirectory(model).about().threshold
        assert f"familiarity of images from {source}: rejected below {threshold:.4g}\n" in etag("info", model).stdout
        assert printed(etag("info", model, "--json"))["familiarity"] == source


def test_a_forgotten_class_is_forgotten_here_too(with_statistics, tmp_path):
    shutil.copytree(with_statistics, tmp_path / "model")
    assert etag("forget", tmp_path / "model", "digit 1").returncode == 0
    classifier, about = ModelDirectory(tmp_path / "model").load_classifier()
    assert len(classifier.familiarity.weight) == len(about.classes) == 2


def test_without_a_threshold_nothing_is_decided(with_statistics, digits_folder, tmp_path):
    directory = ModelDirectory(tmp_path / "model")
    shutil.copytree(with_statistics, directory.path)
    content = directory.current().content
    with directory.locked():
        directory._add(content | {"threshold": None}, keep=1)
    folder = digits_folder("known to reject", (0, 1, 2), first=130, count=40)
    assert "has no threshold" in refused(etag("predict", directory.path, folder, "--reject"))
    predictions = list(predict_files(*directory.load_classifier(), list_images(folder)))
    assert len(predictions) == 120
    assert not any(prediction.rejected for prediction in predictions)
    assert printed(etag("evaluate", directory.path, folder, "--json"))["rejected"] is None
    assert "not calibrated" in etag("info", directory.path).stdout


def test_too_few_held_out_images_are_mentioned(tmp_path, digits_folder):
    words = ["--method", "ncm", "--from-scratch", "--set", "data.size=8", "--set", "train.steps=2"]
    done = etag("learn", tmp_path / "model", digits_folder("few", (0, 1), count=5), *words, "--set", "model.width=4")
    assert "`etag predict` cannot reject unknown images yet: it needs 20 held-out images." in done.stdout, done.stderr


@pytest.mark.skipif(not default_is_installed(), reason="needs the extra `pretrained`")
def test_unknown_flowers_are_rejected_far_more_often_than_known_ones(shared_data, tmp_path):
    """Four flowers are known, and four others are not."""

    def copy(part, classes, count, name="known"):
        folder = tmp_path / part / name
        for kind in classes:
            (folder / kind).mkdir(parents=True)
            for file in sorted((shared_data / "flowers12" / part / kind).iterdir())[:count]:
                shutil.copy(file, folder / kind)
        return folder

    flowers = ("bluebell", "buttercup", "colts-foot", "daisy")
    done = etag("learn", tmp_path / "model", copy("train", flowers, 25), "--set", "data.size=96")
    assert done.returncode == 0, done.stderr
    known = rejected_by_predict(tmp_path / "model", copy("test", flowers, 10))
    unknown = rejected_by_predict(
        tmp_path / "model", copy("test", ("iris", "pansy", "sunflower", "tigerlily"), 10, "unknown")
    )
    assert share(known) < 0.2
    assert share(unknown) > 0.5
    assert share(unknown) > 4 * share(known)
