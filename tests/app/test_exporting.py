"""Export: the file computes what the model computes."""

import json

import numpy as np
import onnxruntime
import pytest
import torch
from tests.app.conftest import etag

from etag.app.predicting import predict_pixels
from etag.learner.model_directory import ModelDirectory
from etag.models.backbone import ModelOptions, new_backbone
from etag.models.classifier import Classifier
from etag.models.initial import build
from etag.models.prediction import CosineRule

CLASSES = {"learned": 5, "with_statistics": 3}


@pytest.fixture(params=CLASSES)
def model(request):
    """A model without class statistics, and one with them."""
    return request.getfixturevalue(request.param), CLASSES[request.param]


def pixels():
    return torch.randint(0, 256, (6, 3, 8, 8), generator=torch.Generator().manual_seed(0)).byte()


def test_export_to_onnx(model, tmp_path):
    path, classes = model
    done = etag("export", path, "--onnx", tmp_path / "model.onnx")
    assert done.returncode == 0, done.stderr
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["classes"]) == [f"digit {digit}" for digit in range(classes)]
    assert "from 0 to 1" in metadata["input"]
    assert [output.name for output in session.get_outputs()] == ["probabilities", "familiarity"]
    found = session.run(None, {"images": (pixels().float() / 255).numpy()})
    classifier, about = ModelDirectory(path).load_classifier()
    for ours, theirs in zip(predict_pixels(classifier, about, pixels()), found, strict=True):
        np.testing.assert_allclose(theirs, ours.numpy(), rtol=1e-4, atol=1e-4)
    assert float(metadata["threshold"]) == about.threshold


def test_export_to_torch(model, tmp_path):
    path, _ = model
    done = etag("export", path, "--torch", tmp_path / "model.pt2")
    assert done.returncode == 0, done.stderr
    found = torch.export.load(tmp_path / "model.pt2").module()(pixels().float() / 255)
    expected = predict_pixels(*ModelDirectory(path).load_classifier(), pixels())
    for ours, theirs in zip(expected, found, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("side", [32, pytest.param(37, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "backbone",
    [
        "efficientnet_lite0",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("mobilenetv2", "vgg11", "resnet18")),
    ],
)
def test_every_kind_of_network_can_be_exported_to_onnx(backbone, side, tmp_path):
    """The weights are random. What a network computes may be written in a way that ONNX Runtime does not open."""
    options, generator = ModelOptions(backbone=backbone), torch.Generator().manual_seed(0)
    network = build(lambda: new_backbone(options, 3, side), generator)
    rule = CosineRule(network.output_size)
    rule.store(means=torch.randn(4, network.output_size, generator=generator))
    classifier = Classifier(network, rule, options, 3, side).eval()
    images = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    torch.onnx.export(classifier, (images,), tmp_path / "x.onnx", dynamo=True, verbose=False, input_names=["images"])
    session = onnxruntime.InferenceSession(tmp_path / "x.onnx")
    with torch.no_grad():
        expected = classifier(images)
    np.testing.assert_allclose(session.run(None, {"images": images.numpy()})[0], expected.numpy(), rtol=1e-3, atol=1e-4)
