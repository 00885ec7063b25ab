"""Weights of timm: what they say of themselves, the file they become, and a model that starts from them. Tests run with
a stand-in, and with the real timm where it can be imported."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from tests.small_timm import RESNET, SIDE, VIT, install

from etag import IncrementalClassifier
from etag.core.errors import EtagError
from etag.core.images import ImageFormat
from etag.learner.pretrained import complete, locate
from etag.learner.timm_weights import SAFELY, image_format
from etag.models.backbone import ModelOptions, new_backbone
from etag.models.weights import load_weights, read_tensors

MINE = ImageFormat(size=20, mean=(0.1, 0.1, 0.1), std=(0.9, 0.9, 0.9))


@pytest.fixture(params=["stand-in", "real"])
def timm(request, monkeypatch, tmp_path):
    return install(request.param, monkeypatch, tmp_path)


@pytest.mark.parametrize("name", [RESNET, VIT])
def test_a_name_says_everything(timm, name):
    options = complete(ModelOptions(weights=f"timm:{name.partition('.')[0]}"))
    assert (options.backbone, options.architecture) == ("timm", {"name": name}), "with the tag of the weights"
    assert (options.images.size, len(options.sha256)) == (SIDE, 64)
    assert ModelOptions.model_validate(json.loads(json.dumps(options.model_dump(mode="json")))) == options
    assert complete(options) == options
    assert list(timm.given) == [name], "downloaded once"
    ours = new_backbone(options, 3, SIDE)
    report = load_weights(ours, locate(options.weights).file)
    assert report.unused == ()
    assert all(torch.equal(ours.state_dict()[f"stages.0.0.{key}"], value) for key, value in timm.given[name].items())


def test_the_checksum_is_that_of_the_tensors(timm):
    options = complete(ModelOptions(weights=f"timm:{RESNET}"))
    file = locate(options.weights).file
    assert read_tensors(file).keys() == timm.given[RESNET].keys()
    with pytest.raises(EtagError, match="are not the expected ones: their SHA-256 is"):
        complete(ModelOptions(weights=f"timm:{RESNET}", sha256="0" * 64))
    torch.manual_seed(12)
    before = torch.get_rng_state()
    file.unlink()
    assert locate(options.weights).file.exists()
    assert torch.equal(torch.get_rng_state(), before), "the global generator is left as it was"


def test_another_backbone_is_an_error(timm):
    with pytest.raises(EtagError, match=r"are those of timm: set model\.backbone=timm, or leave it out"):
        complete(ModelOptions(weights=f"timm:{RESNET}", backbone="resnet18"))


def test_a_download_that_fails(timm, monkeypatch):
    create, seen = timm.create_model, []

    def fail(name, pretrained=False, **options):
        if pretrained:
            seen.append(os.environ.get(SAFELY))
            raise OSError("No route to host. Try again.\nmore")
        return create(name, **options)

    monkeypatch.setattr(timm, "create_model", fail)
    monkeypatch.delenv(SAFELY, raising=False)
    with pytest.raises(
        EtagError, match=rf"^the weights of {VIT} cannot be loaded through timm \(No route to host\): che"
    ):
        complete(ModelOptions(weights=f"timm:{VIT}"))
    assert (seen, os.environ.get(SAFELY)) == (["1"], None), "pickled code is refused meanwhile"


def test_a_model_is_learned_saved_and_loaded_without_the_weights(timm, tmp_path):
    pixels, labels = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8), [0, 1, 2] * 4
    for name, settings in ((VIT, {"model.train": "head"}), (RESNET, {})):
        method = "ridge" if settings else "fine"
        model = IncrementalClassifier(method, weights=f"timm:{name}", size=32, steps=2, settings=settings)
        model.fit(pixels[:8], labels[:8]).partial_fit(pixels[8:], [3] * 4)
        model.save(tmp_path / name)
        shutil.rmtree(tmp_path / "cache")
        timm.given.clear()
        loaded = IncrementalClassifier.load(tmp_path / name)
        np.testing.assert_allclose(loaded.predict_proba(pixels), model.predict_proba(pixels), atol=1e-5)
        loaded.partial_fit(pixels[:4], [4] * 4)  # it learns more without them, too
        assert loaded.predict_proba(pixels).shape == (12, 5)
        assert (timm.given, (tmp_path / "cache").exists()) == ({}, False)
        located = locate(str(tmp_path / name))  # another model can start from it
        assert (located.backbone, located.architecture) == ("timm", {"name": name})
        load_weights(new_backbone(complete(ModelOptions(weights=str(tmp_path / name))), 3, 32), located.file)


def test_etag_runs_on_a_frozen_network_only(timm):
    pixels, small = np.zeros((8, 8, 8, 3), dtype=np.uint8), {"method.generator.train.steps": 2}
    small |= {"method.generator.feature_passes": 1}
    for train in ("head", "all"):
        settings = small | {"model.train": train}
        model = IncrementalClassifier("etag", weights=f"timm:{RESNET}", size=32, steps=2, settings=settings)
        if train == "all":
            with pytest.raises(EtagError, match=r"needs a backbone with two stages or more.*: set model\.train=head"):
                model.fit(pixels, [0, 1] * 4)
        else:
            model.fit(pixels, [0, 1] * 4).partial_fit(pixels[:4], [2] * 4)
            assert model.predict_proba(pixels).shape == (8, 3)


# -- what runs without timm --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hf-hub:owner/name", "local-dir:/tmp/x", "../x", "owner/name", "", "X"])
def test_a_source_that_is_no_name(name):
    with pytest.raises(
        EtagError, match=r"^model\.weights cannot be used: .* is not the name of a network of timm, such"
    ):
        locate(f"timm:{name}")


CENTER = {
    "input_size": (3, 224, 224),
    "mean": (0.4, 0.5, 0.6),
    "std": (0.2, 0.3, 0.4),
    "interpolation": "bicubic",
    "crop_pct": 0.9,
    "crop_mode": "center",
}


def test_the_images_of_timm():
    found = image_format("net", CENTER)
    assert found == ImageFormat(
        size=224, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), interpolation="bicubic", crop=224 / 248
    )
    assert image_format("net", CENTER | {"crop_pct": 1.0}).crop == 1
    assert image_format("net", CENTER | {"crop_pct": 1.0, "crop_mode": "squash"}).crop is None
    assert image_format("net", CENTER | {"interpolation": "nearest"}).interpolation == "bilinear"
    assert image_format("net", CENTER | {"interpolation": "lanczos"}).interpolation == "bicubic"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"input_size": (3, 256, 192)}, r"are 256x192 pixels and not square"),
        ({"crop_mode": "squash"}, r"are cropped in a way that etag does not have \(crop_mode=squash, crop_pct=0\.9\)"),
        ({"crop_mode": "border"}, "are cropped in a way that etag does not have"),
        ({"crop_pct": 1.15}, "are cropped in a way that etag does not have"),
        ({"interpolation": "random"}, "are described by values that etag does not know"),
        ({"std": (0.0, 1.0, 1.0)}, "are described by values that etag does not know"),
    ],
    ids=str,
)
def test_images_that_we_cannot_express(changes, problem):
    with pytest.raises(EtagError, match=rf"^the images of net {problem}.*: set model\.images, such as model\.images="):
        image_format("net", CENTER | changes)


def test_images_can_be_set_instead(timm, monkeypatch):
    config = timm.data.resolve_model_data_config
    monkeypatch.setattr(
        timm.data, "resolve_model_data_config", lambda network: config(network) | {"crop_mode": "border"}
    )
    with pytest.raises(EtagError, match=r"crop_mode=border.*set model\.images"):
        complete(ModelOptions(weights=f"timm:{RESNET}"))
    assert complete(ModelOptions(weights=f"timm:{RESNET}", images=MINE)).images == MINE
