"""Export: the file computes what the model computes."""

import json

import numpy as np
import torch
from tests.app.conftest import etag

from etag.app.predicting import probabilities
from etag.learner.model_directory import ModelDirectory


def test_export_to_onnx(learned, tmp_path):
    import onnxruntime

    done = etag("export", learned, "--onnx", tmp_path / "model.onnx")
    assert done.returncode == 0, done.stderr
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == [f"digit {digit}" for digit in range(5)]
    assert "from 0 to 1" in about["input"]
    pixels = torch.randint(0, 256, (6, 3, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
    (found,) = session.run(None, {"images": (pixels.float() / 255).numpy()})
    np.testing.assert_allclose(
        found, probabilities(*ModelDirectory(learned).load_classifier(), pixels).numpy(), atol=1e-4
    )


def test_export_to_torch(learned, tmp_path):
    done = etag("export", learned, "--torch", tmp_path / "model.pt2")
    assert done.returncode == 0, done.stderr
    program = torch.export.load(tmp_path / "model.pt2").module()
    pixels = torch.randint(0, 256, (6, 3, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
    expected = probabilities(*ModelDirectory(learned).load_classifier(), pixels)
    torch.testing.assert_close(program(pixels.float() / 255), expected, rtol=0, atol=1e-4)
