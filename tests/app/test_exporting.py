"""Export: the file computes what the model computes."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from tests.app.conftest import etag, printed, refused

from etag.app import photo_graph
from etag.app.exporting import FromPixels, metadata
from etag.app.onnx_files import export_onnx, onnx_model
from etag.app.predicting import predict_pixels
from etag.core.errors import EtagError
from etag.data.preprocess import Preprocess
from etag.learner.model_directory import ModelDirectory
from etag.learner.versions import ModelInfo
from etag.models.backbone import ModelOptions, new_backbone
from etag.models.classifier import Classifier
from etag.models.initial import build
from etag.models.prediction import CosineRule

DOCS = Path(__file__).parents[2] / "docs"
CLASSES = {"learned": 5, "with_statistics": 3}


@pytest.fixture(params=CLASSES)
def model(request):
    """A model without class statistics, and one with them."""
    return request.getfixturevalue(request.param), CLASSES[request.param]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of photos of many sizes, enlarged digits, one of them to be turned upright; tests must not change it."""
    folder, exif = tmp_path_factory.mktemp("photos"), Image.Exif()
    exif[0x0112] = 6
    for number, row in enumerate(load_digits().images[:8]):
        image = Image.fromarray((row * 15.9).astype("uint8")).resize((40 + 60 * number, 50 + 30 * number))
        image.convert("RGB").save(folder / f"{number}.png", exif=exif if number == 5 else None)
    return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory, learned, with_statistics, photos):
    """For each model: its directory, the ONNX file, and what the command printed."""
    home = tmp_path_factory.mktemp("exported")

    def export(name, model):
        return model, home / name, etag("export", model, "--onnx", home / name, "--photos", photos)

    return {"learned": export("a.onnx", learned), "with_statistics": export("b.onnx", with_statistics)}


def pixels():
    return torch.randint(0, 256, (6, 3, 8, 8), generator=torch.Generator().manual_seed(0)).byte()


def outputs(file, **inputs):
    return onnxruntime.InferenceSession(file).run(None, inputs)


@pytest.mark.parametrize("kind", CLASSES)
def test_onnx_takes_photos_of_any_size(exported, kind, photos):
    path, file, done = exported[kind]
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert re.fullmatch(r".*onnx: written; its outputs differ from the model's by at most \d\.\de-\d\d\.", first)
    assert "the probabilities differ by at most" in second
    assert third.startswith("on 8 photos, 8 of them get the same class; the probabilities differ by at most ")
    session, about = onnxruntime.InferenceSession(file), ModelDirectory(path).about()
    (taken,) = session.get_inputs()
    assert (taken.name, taken.type, taken.shape[3]) == ("photos", "tensor(uint8)", 3)
    assert [output.name for output in session.get_outputs()] == ["probabilities", "familiarity"]
    texts = session.get_modelmeta().custom_metadata_map
    assert json.loads(texts["classes"]) == list(about.classes)
    assert float(texts["threshold"]) == about.threshold
    lines = etag("predict", path, photos, "--format", "json", "--top", CLASSES[kind]).stdout.splitlines()
    for line in map(json.loads, lines):
        expected = {row["class"]: row["probability"] for row in line["predictions"]}
        with Image.open(line["path"]) as image:
            photo = np.asarray(image.convert("RGB"))
        photo = np.rot90(photo, -1) if line["path"].endswith("5.png") else photo
        found, _ = session.run(None, {"photos": np.stack([photo, photo])})
        assert found.shape == (2, CLASSES[kind])
        np.testing.assert_allclose(found[0], [expected[name] for name in about.classes], atol=0.02)


@pytest.mark.parametrize("kind", CLASSES)
def test_photos_of_the_models_own_size_are_not_resized(exported, kind):
    path, file, _ = exported[kind]
    found = outputs(file, photos=pixels().permute(0, 2, 3, 1).numpy())
    for ours, theirs in zip(predict_pixels(*ModelDirectory(path).load_classifier(), pixels()), found, strict=True):
        np.testing.assert_allclose(theirs, ours.numpy(), rtol=1e-4, atol=1e-4)


def test_onnx_can_take_resized_images(learned, tmp_path):
    done = etag("export", learned, "--onnx", tmp_path / "model.onnx", "--input", "tensors")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    found = outputs(tmp_path / "model.onnx", images=(pixels().float() / 255).numpy())
    for ours, theirs in zip(predict_pixels(*ModelDirectory(learned).load_classifier(), pixels()), found, strict=True):
        np.testing.assert_allclose(theirs, ours.numpy(), rtol=1e-4, atol=1e-4)
    texts = onnxruntime.InferenceSession(tmp_path / "model.onnx").get_modelmeta().custom_metadata_map
    assert texts["input"].startswith("images: float32, (n, 3, 8, 8), from 0 to 1")


def test_export_to_torch(model, tmp_path):
    path, _ = model
    done = etag("export", path, "--torch", tmp_path / "model.pt2")
    assert done.returncode == 0, done.stderr
    texts = {"classes": "", "filter": "", "input": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=texts)
    assert texts["filter"] == "bilinear"
    assert "reducing_gap=2" in torch_metadata(path)["antialias"]
    found = program.module()(pixels().float() / 255)
    expected = predict_pixels(*ModelDirectory(path).load_classifier(), pixels())
    for ours, theirs in zip(expected, found, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-4)


def torch_metadata(path):
    return metadata(ModelDirectory(path).about(), "tensors")


def model_info(side, channels=3, threshold=None, **changes):
    """What is known of a model that was never trained."""
    normal = ((0.4,) * channels, (0.2,) * channels)
    preprocess = Preprocess(*normal, size=side, flip=False, **changes)
    classes = ("a", 1, ("b", 2), None)
    return ModelInfo({}, preprocess, channels, classes=classes, task_sizes=(4,), threshold=threshold)


def test_metadata_say_how_the_input_is_made():
    squash = metadata(model_info(24, threshold=-1.5), "photos")
    assert json.loads(squash["classes"]) == ["a", 1, {"tuple": ["b", 2]}, None]
    assert squash["input"].startswith("photos: uint8, (n, height, width, 3), RGB, from 0 to 255")
    assert (squash["size"], squash["shorter_side"], squash["filter"]) == ("24", "24", "bilinear")
    assert squash["resize"].startswith("squash")
    assert (squash["color"], squash["value_range"], squash["threshold"]) == ("RGB", "0 to 255", "-1.5")
    assert json.loads(squash["mean"]) == [0.4, 0.4, 0.4]
    assert "upright" in squash["exif_orientation"]
    crop = metadata(model_info(28, channels=1, crop=0.875, interpolation="bicubic"), "tensors")
    assert (crop["size"], crop["shorter_side"], crop["filter"], crop["color"]) == ("28", "32", "bicubic", "gray")
    assert crop["resize"].startswith("crop")
    assert crop["value_range"] == "0 to 1"
    assert "threshold" not in crop
    assert squash.keys() - {"threshold"} == crop.keys()


def test_photos_need_an_onnx_file_that_takes_photos(learned, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    Image.new("RGB", (20, 30)).save(photos / "2.png")
    words = ["export", learned, "--photos", photos]
    assert "add --onnx FILE" in refused(etag(*words, "--torch", tmp_path / "x"))
    assert "leave out --photos" in refused(etag(*words, "--onnx", tmp_path / "x", "--input", "tensors"))
    (photos / "3.png").write_bytes(b"no image")
    assert "3.png (not an image)" in refused(etag(*words, "--onnx", tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_a_runtime_that_resizes_otherwise_is_refused(learned, tmp_path, monkeypatch):
    """Without antialiasing the pixels would be others, and no error would tell it."""
    coarse = photo_graph.GRAPH.replace("antialias=1, exclude_outside=1, ", "")
    monkeypatch.setattr(photo_graph, "GRAPH", coarse)
    with pytest.raises(
        EtagError, match=r"resizes photos otherwise than Pillow, by .* levels in the mean: update it, or"
    ):
        export_onnx(learned, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_photos_have_one_or_three_colors():
    module, _ = untrained("resnet18", 32, channels=4)
    with pytest.raises(
        EtagError, match=r"takes images of 4 channels, and photos have 3 or 1: export it with --input ten"
    ):
        onnx_model(module, model_info(32, channels=4), "photos")


def untrained(backbone, side, channels=3):
    """A network with random weights, as it is exported, and its generator."""
    options, generator = ModelOptions(backbone=backbone, width=8), torch.Generator().manual_seed(0)
    network = build(lambda: new_backbone(options, channels, side), generator)
    rule = CosineRule(network.output_size)
    rule.store(means=torch.randn(4, network.output_size, generator=generator))
    classifier = Classifier(network, rule, options, channels, side).eval()
    return FromPixels(classifier, model_info(side, channels)).eval(), generator


@pytest.mark.parametrize("side", [32, pytest.param(37, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "backbone",
    [
        "efficientnet_lite0",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("mobilenetv2", "vgg11", "resnet18", "resnet32", "mlp")
        ),
    ],
)
def test_every_kind_of_network_can_be_exported_to_onnx(backbone, side):
    """The weights are random. What a network computes may be written in a way that ONNX Runtime does not open."""
    module, generator = untrained(backbone, side)
    content, front = onnx_model(module, model_info(side), "photos")
    whole, resize = (onnxruntime.InferenceSession(each.SerializeToString()) for each in (content, front))
    for height, width in ((side, side), (50, 80), (200, 120)):
        photos = torch.randint(0, 256, (2, height, width, 3), generator=generator).byte().numpy()
        with torch.no_grad():
            expected = module(torch.from_numpy(resize.run(None, {"photos": photos})[0]))
        for ours, theirs in zip(expected, whole.run(None, {"photos": photos}), strict=True):
            np.testing.assert_allclose(theirs, ours.numpy(), rtol=1e-3, atol=1e-4)


def code_blocks(page):
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_the_python_of_the_documents_needs_no_etag(exported, photos, tmp_path, monkeypatch, capsys):
    """It is run as it is written there, on a large JPEG that must be turned upright."""
    monkeypatch.chdir(tmp_path)
    onnx_block, torch_block = (block for block in code_blocks("export.md") if "litert" not in block)
    assert "etag" not in "".join(line for line in onnx_block.splitlines() if "import" in line)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(photos / "7.png").resize((900, 700)).save("photo.jpg", exif=exif)
    model, file, _ = exported["with_statistics"]
    shutil.copy(file, "model.onnx")
    assert etag("export", model, "--torch", "model.pt2").returncode == 0
    capsys.readouterr()
    exec(compile(onnx_block, "docs/export.md", "exec"), {})
    first, second = capsys.readouterr().out.splitlines()
    (found,) = printed(etag("predict", model, "photo.jpg", "--format", "json"))["predictions"]
    name, _, probability = first.rpartition(" ")
    assert name == found["class"]
    assert float(probability) == pytest.approx(found["probability"], abs=0.02)
    (line,) = etag("predict", model, "photo.jpg", "--reject").stdout.splitlines()
    assert second == f"unlike all known classes: {'(none of these)' in line}"
    names = {}
    exec(compile(torch_block, "docs/export.md", "exec"), names)
    assert json.loads(names["texts"]["classes"]) == ["digit 0", "digit 1", "digit 2"]
    assert names["classify"](torch.rand(2, 3, 8, 8))[0].shape == (2, 3)
