"""Pre-trained weights: where they are found, what they say of themselves, and a model that starts from them."""

import json

import numpy as np
import pytest
import torch
from tests.small_transformers import SIDE, SMALL, architecture, features, network, save

from etag.app.onnx_files import export_onnx
from etag.core.errors import EtagError
from etag.core.images import ImageFormat
from etag.experiments.config import resolve
from etag.learner.pretrained import complete, locate
from etag.models.backbone import ModelOptions, new_backbone
from etag.models.weights import load_weights

MINE = ImageFormat(size=20, mean=(0.1, 0.1, 0.1), std=(0.9, 0.9, 0.9))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """saved(family): a directory that transformers wrote; tests must not change it."""
    home = tmp_path_factory.mktemp("saved")

    def folder(family, **changes):
        path = home / "-".join([family, *changes])
        return path if path.exists() else save(network(family, **changes), path)

    return folder


@pytest.fixture
def copied(tmp_path):
    """A directory of a ViT that a test may change."""
    return save(network("vit"), tmp_path / "vit")


@pytest.mark.parametrize("family", SMALL)
def test_a_directory_says_everything(family, saved):
    options = complete(ModelOptions(weights=str(saved(family))))
    assert options.backbone == "transformers"
    assert options.architecture.items() >= architecture(family).items()
    assert (options.images.size, options.images.mean) == (SIDE, (0.4, 0.5, 0.6))
    assert len(options.sha256) == 64
    assert complete(options) == options
    assert ModelOptions.model_validate(json.loads(json.dumps(options.model_dump(mode="json")))) == options
    ours, images = new_backbone(options, 3, SIDE).eval(), torch.rand(2, 3, SIDE, SIDE)
    load_weights(ours, locate(options.weights).file)
    torch.testing.assert_close(ours(images), features(network(family), images), rtol=0, atol=1e-5)


def test_a_pytorch_file(copied):
    model = network("vit")
    (copied / "model.safetensors").unlink()
    torch.save(model.state_dict(), copied / "pytorch_model.bin")
    options = complete(ModelOptions(weights=str(copied)))
    ours, images = new_backbone(options, 3, SIDE).eval(), torch.rand(2, 3, SIDE, SIDE)
    load_weights(ours, locate(options.weights).file)
    torch.testing.assert_close(ours(images), features(model, images), rtol=0, atol=1e-5)


def test_images_can_be_set_instead_of_the_processor(copied):
    (copied / "preprocessor_config.json").unlink()
    with pytest.raises(EtagError, match=r"preprocessor_config\.json' is missing: it tells which images the weights ex"):
        complete(ModelOptions(weights=str(copied)))
    assert complete(ModelOptions(weights=str(copied), images=MINE)).images == MINE


def test_images_that_are_set_win(saved):
    assert complete(ModelOptions(weights=str(saved("vit")), images=MINE)).images == MINE


def test_another_backbone_is_an_error(saved):
    with pytest.raises(
        EtagError, match=r"are those of transformers: set model\.backbone=transformers, or leave it out"
    ):
        complete(ModelOptions(weights=str(saved("vit")), backbone="resnet18"))


def test_another_checksum_is_an_error(saved):
    with pytest.raises(EtagError, match="are not the expected ones: their SHA-256 is"):
        complete(ModelOptions(weights=str(saved("vit")), sha256="0" * 64))


def test_a_directory_without_a_configuration(tmp_path):
    with pytest.raises(
        EtagError, match=r"is neither a model directory nor one of Hugging Face transformers, which has"
    ):
        locate(str(tmp_path))


def test_a_directory_without_weights(copied):
    (copied / "model.safetensors").unlink()
    with pytest.raises(EtagError, match=r"^there are no weights in"):
        locate(str(copied))


def test_a_bad_configuration_names_its_file(copied):
    (copied / "config.json").write_text(json.dumps(architecture("vit", hidden_size="wide")))
    with pytest.raises(EtagError, match=r"^'.*/vit/config\.json' cannot be used: hidden_size: Input should be a valid"):
        locate(str(copied))


def test_a_name_of_the_hub_is_a_directory_in_its_cache(saved, monkeypatch):
    monkeypatch.setattr("etag.learner.hugging_face.download", lambda source: saved("swin"))
    assert locate("hf:owner/name@v1").file == saved("swin") / "model.safetensors"
    assert complete(ModelOptions(weights="hf:owner/name@v1")).architecture["model_type"] == "swin"


def test_a_configuration_of_a_run_is_completed(saved):
    config = resolve("digits", {"method": "fine", "model.weights": str(saved("vit"))})
    assert (config.model.backbone, config.model.images.size) == ("transformers", SIDE)


# -- a model that starts from such weights -----------------------------------------------------------------------------

GRAY = {"num_channels": 1}


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("train", ["last-1", "head"])
def test_a_model_is_learned_saved_and_loaded(family, train, saved, course):
    options = {"model.weights": str(saved(family, **GRAY)), "model.train": train, "data.size": SIDE}
    made = course("fine", **options, **{"train.epochs": 1})
    learner = made.learner()
    learner.method.load_weights()
    frozen = {name: value.clone() for name, value in learner.method.solver.backbone.stages[0].state_dict().items()}
    made.learn(0, learner=learner)
    learner = made.learn(1)  # from the saved model
    images = torch.rand(3, 1, SIDE, SIDE)
    expected = learner.method.classifier().eval()(images)
    classifier, about = made.directory.load_classifier()
    torch.testing.assert_close(classifier(images), expected, rtol=0, atol=1e-5)
    method, _ = made.directory.load_method()
    torch.testing.assert_close(method.classifier().eval()(images), expected, rtol=0, atol=1e-5)
    after = classifier.backbone.stages[0].state_dict()
    assert all(torch.equal(value, after[name]) for name, value in frozen.items())
    assert len(about.classes) == 3
    # another model can start from it
    located = locate(str(made.directory.path))
    assert (located.backbone, located.architecture["model_type"]) == ("transformers", family)
    other = new_backbone(complete(ModelOptions(weights=str(made.directory.path))), 1, SIDE)
    load_weights(other, located.file)
    torch.testing.assert_close(other.eval()(images), classifier.backbone(images), rtol=1e-4, atol=1e-5)


def test_a_vit_for_images_of_another_side_is_exported_to_onnx(saved, course, tmp_path):
    import onnxruntime

    options = {"model.weights": str(saved("vit", **GRAY)), "model.train": "head", "data.size": 20}
    made = course("fine", **options, **{"train.epochs": 1})
    made.learn(0)
    assert export_onnx(made.directory.path, tmp_path / "model.onnx").difference < 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (found,) = session.run(["probabilities"], {"photos": np.zeros((7, 33, 44, 1), dtype=np.uint8)})
    assert found.shape == (7, 2)
