"""Lessons of very few images with the pre-trained default, on real flowers."""

import json
import shutil
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from tests.app.conftest import etag, settings
from tests.app.test_layouts import images as write_images

from etag.app.estimator import IncrementalClassifier
from etag.learner.model_directory import ModelDirectory
from etag.learner.pretrained import default_is_installed


@pytest.fixture(scope="module")
def flowers(shared_data, tmp_path_factory):
    """flowers(per_class, kinds): a folder of so many images of each kind."""

    def copy(per_class, *kinds, first=0):
        folder = tmp_path_factory.mktemp("flowers")
        for kind in kinds:
            (folder / kind).mkdir()
            for file in sorted((shared_data / "flowers12" / "train" / kind).iterdir())[first : first + per_class]:
                shutil.copy(file, folder / kind)
        return folder

    return copy


@pytest.mark.skipif(not default_is_installed(), reason="the pre-trained weights are not installed")
@pytest.mark.parametrize("shots", [1, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 5, 10))])
def test_lessons_of_few_images(flowers, tmp_path, shots):
    first = etag("learn", tmp_path / "m", flowers(shots, "daisy", "iris", "pansy"), "--set", "data.size=64")
    assert first.returncode == 0, first.stderr
    later = etag("learn", tmp_path / "m", flowers(shots, "sunflower"))
    assert later.returncode == 0, later.stderr
    about = ModelDirectory(tmp_path / "m").about()
    assert len(about.classes) == 4
    assert 0.05 < about.temperature < 20
    assert about.threshold is None, "fewer than 20 images are held out"
    if shots == 1:
        assert "classes of a single image (sunflower) are not tested" in later.stdout
        assert "a stored mean is its feature" in later.stdout
        assert "held-out images are" not in later.stdout
        assert "the mean of a class of one image, which is that image's feature: daisy, iris" in etag(
            "info", tmp_path / "m"
        ).stdout.replace("\n", " ")
        assert about.history[0].evaluation is None
    else:
        assert "95 % interval: " in later.stdout
    folder = flowers(5, "daisy", "iris", "pansy", "sunflower", first=30)
    done = etag("predict", tmp_path / "m", folder, "--format", "json")
    predictions = [json.loads(line) for line in done.stdout.splitlines()]
    right = [row["predictions"][0]["class"] == Path(row["path"]).parent.name for row in predictions]
    sure = [row["predictions"][0]["probability"] for row in predictions]
    assert mean(right) > 0.5
    assert 0.3 < mean(sure) < mean(right) + 0.1, "neither as unsure as chance nor surer than a few images allow"


@pytest.mark.parametrize("method", ["etag", "slda", "ridge", pytest.param("gfr", marks=pytest.mark.slow)])
@pytest.mark.parametrize("shots", [1, 2])
def test_the_first_lesson_takes_as_few_images_as_a_later_one(tmp_path, method, shots):
    own = settings("train.steps=2", "train.base={steps: 2}", generator=method in ("etag", "gfr"))
    for kinds, words in ((("cat", "dog"), ["--from-scratch", "--method", method, *own]), (("emu", "yak"), own[-4:-2])):
        photos = write_images(tmp_path, *(f"{kinds[0]} first/{kind}" for kind in kinds), count=shots)
        done = etag("learn", tmp_path / "m", photos / f"{kinds[0]} first", *words)
        assert done.returncode == 0, done.stderr
    about = ModelDirectory(tmp_path / "m").about()
    assert about.classes == ("cat", "dog", "emu", "yak")
    assert [lesson.images for lesson in about.history] == [2, 2], "all but the last of two images"


def test_arrays_with_classes_of_one_image():
    images = np.random.default_rng(0).random((5, 8, 8))
    small = {"method.generator.train.steps": 2, "method.generator.feature_passes": 1}
    model = IncrementalClassifier(steps=2, width=4, settings=small).fit(images, [0, 0, 0, 0, 1])
    model.partial_fit(images[:1], [2])
    assert model.predict_proba(images).shape == (5, 3)


@pytest.mark.skipif(not default_is_installed(), reason="the pre-trained weights are not installed")
def test_the_estimator_chooses_as_the_command_does(flowers):
    folder, more = flowers(6, "daisy", "iris"), flowers(6, "pansy")
    model = IncrementalClassifier(size=64).fit(folder)
    about = model._directory.about()
    assert (about.method, about.learner_config().model.backbone) == ("ridge", "efficientnet_lite0")
    model.partial_fit(more)
    test = flowers(5, "daisy", "iris", "pansy", first=30)
    assert model.score(test) > 0.6, "three flowers, chance is 0.33"
    arrays, labels = np.zeros((10, 8, 8, 3), dtype=np.uint8), [0, 1] * 5
    assert IncrementalClassifier(size=32).fit(arrays, labels)._directory.about().method == "ridge"
    few = {"method.generator.train.steps": 2, "method.generator.feature_passes": 1}
    for images, from_scratch in ((arrays[..., 0], False), (arrays, True)):
        model = IncrementalClassifier(from_scratch=from_scratch, steps=2, settings=few)
        assert model.fit(images, labels)._directory.about().method == "etag", "gray images, or from scratch"
