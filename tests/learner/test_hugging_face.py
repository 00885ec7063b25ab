"""What is read from directories of transformers and from the Hugging Face Hub."""

import json
import os
import sys

import numpy as np
import pytest
from PIL import Image
from tests.small_transformers import SMALL, architecture, processor

from etag.core.errors import EtagError
from etag.core.images import ImageFormat, Resize
from etag.data.decode import decode
from etag.learner import hugging_face
from etag.learner.hugging_face import download, read_config, read_images, weights_file


def write(folder, name, content):
    """Write text or JSON values."""
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def read(folder, family, **changes):
    """The images of a processor."""
    write(folder, "preprocessor_config.json", processor(family, **changes))
    return read_images(folder, architecture(family, num_channels=3))


# -- images ------------------------------------------------------------------------------------------------------------

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
EXPECTED = {
    "vit": ImageFormat(size=16, mean=MEAN, std=STD),
    "dinov2": ImageFormat(size=16, mean=MEAN, std=STD, interpolation="bicubic", crop=16 / 20),
    "convnext": ImageFormat(size=16, mean=MEAN, std=STD, interpolation="bicubic", crop=16 / 18),
}


@pytest.mark.parametrize("family", EXPECTED)
def test_images_of_each_kind_of_processor(family, tmp_path):
    assert read(tmp_path, family) == EXPECTED[family]


@pytest.mark.parametrize("family", EXPECTED)
def test_images_are_prepared_as_transformers_prepares_them(family, tmp_path):
    import transformers

    values = processor(family)
    kind = getattr(transformers, values["image_processor_type"] + "Pil")
    noise = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((70, 50), Image.Resampling.BICUBIC)
    image.save(tmp_path / "image.png")
    theirs = kind(**values)(image, return_tensors="np")["pixel_values"][0]
    images = read(tmp_path, family)
    pixels = decode(tmp_path / "image.png", Resize(images.size, images.interpolation, images.crop)) / 255.0
    ours = (pixels - np.reshape(images.mean, (3, 1, 1))) / np.reshape(images.std, (3, 1, 1))
    assert ours.shape == theirs.shape == (3, 16, 16)
    assert np.abs(ours - theirs).max() < 0.08  # of about 3; a pixel more to the left gives 0.9
    assert np.abs(ours - theirs).mean() < 0.01


OLDER = {
    "the first files of ViT": ("vit", {"size": 16, "resample": ..., "image_processor_type": ..., "do_rescale": ...}),
    "a feature extractor": ("vit", {"size": 16, "image_processor_type": ..., "feature_extractor_type": "ViTFeature"}),
    "nulls": ("vit", {"crop_size": None, "do_center_crop": None, "crop_pct": None, "device": None}),
    "a crop that is off": ("vit", {"crop_size": {"height": 12, "width": 12}, "do_center_crop": False}),
    "a crop of the whole": ("vit", {"crop_size": 16, "do_center_crop": True}),
    "ConvNeXt": ("convnext", {"size": 16, "image_processor_type": ..., "crop_pct": ..., "resample": ...}),
    "DINOv2": ("dinov2", {"size": 20, "crop_size": 16, "do_center_crop": ..., "resample": ...}),
}


@pytest.mark.parametrize(("family", "changes"), OLDER.values(), ids=OLDER)
def test_other_forms_mean_the_same(family, changes, tmp_path):
    assert read(tmp_path, family, **changes) == EXPECTED[family]


def test_crops(tmp_path):
    assert read(tmp_path, "dinov2", size={"shortest_edge": 256}, crop_size=224).crop == 224 / 256
    assert read(tmp_path, "dinov2", do_center_crop=False).crop == 1
    assert read(tmp_path, "convnext", size={"shortest_edge": 224}, crop_pct=0.95).crop == 224 / 235
    assert read(tmp_path, "convnext", size={"shortest_edge": 384}).crop is None
    assert read(tmp_path, "convnext", crop_pct=1.0).crop == 1


def test_filters(tmp_path):
    names = [read(tmp_path, "vit", resample=number).interpolation for number in range(6)]
    assert names == ["bilinear", "bicubic", "bilinear", "bicubic", "bilinear", "bilinear"]


def test_images_that_are_not_normalized(tmp_path):
    images = read(tmp_path, "vit", do_normalize=False, image_mean=..., image_std=[0.5])
    assert (images.mean, images.std) == ((0, 0, 0), (1, 1, 1))


BAD_PROCESSORS = {
    "no size": ({"size": ...}, "cannot be used: size: Field required"),
    "an empty size": ({"size": {}}, "cannot be used: size has neither height and width nor shortest_edge"),
    "a text": ({"size": "224"}, "cannot be used: size: Input should be a valid dictionary"),
    "true": ({"size": True}, "cannot be used: size: Input should be a valid dictionary"),
    "one side": ({"size": {"height": 16}}, "cannot be used: images of 16xNone pixels are not square"),
    "two sides": ({"size": {"height": 16, "width": 8}}, "cannot be used: images of 16x8 pixels are not square"),
    "zero": ({"size": 0}, r"cannot be used: size\.height: Input should be greater than or equal to 1"),
    "huge": ({"size": 10**12}, r"cannot be used: size\.height: Input should be less than or equal to 16384"),
    "crop": (
        {"crop_size": 12, "do_center_crop": True},
        "cannot be used: it squeezes images into a square before it cr",
    ),
    "large crop": (
        {"size": {"shortest_edge": 16}, "crop_size": 20, "do_center_crop": True},
        "cannot be used: crop_size=20 is larger than shortest_edge=16",
    ),
    "share": ({"crop_pct": 0}, "cannot be used: crop_pct: Input should be greater than 0"),
    "filter": ({"resample": 9}, "cannot be used: resample: Input should be less than or equal to 5"),
    "name of a filter": ({"resample": "bicubic"}, "cannot be used: resample: Input should be a valid integer"),
    "factor": ({"rescale_factor": 1 / 127.5}, "cannot be used: its pixels are not divided by 255"),
    "no factor": ({"do_rescale": False}, "cannot be used: its pixels are not divided by 255"),
    "no mean": ({"image_mean": ...}, "cannot be used: image_mean and image_std need 3 numbers each"),
    "one mean": ({"image_mean": [0.5]}, "cannot be used: image_mean and image_std need 3 numbers each"),
    "not a number": ({"image_mean": [0.5, 0.5, float("nan")]}, r"cannot be used: image_mean\.2: Input should be a fin"),
    "no deviation": ({"image_std": [0.5, 0.5, 0]}, r"cannot be used: image_std\.2: Input should be greater than 0"),
}


def fails(folder, pattern):
    with pytest.raises(EtagError, match=rf"^'?{folder}/preprocessor_config\.json'? {pattern}") as error:
        read_images(folder, architecture("vit", num_channels=3))
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(
        ": it tells which images the weights expect. Copy or correct it, or set model.images, such as "
        "model.images={size: 224, mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}."
    )


@pytest.mark.parametrize(("changes", "problem"), BAD_PROCESSORS.values(), ids=BAD_PROCESSORS)
def test_a_bad_processor_is_one_sentence(changes, problem, tmp_path):
    write(tmp_path, "preprocessor_config.json", processor("vit", **changes))
    fails(tmp_path, problem)


def test_a_missing_processor(tmp_path):
    fails(tmp_path, "is missing")


BAD_JSON = {
    "nothing": "",
    "cut off": '{"model_type": "vit"',
    "text": "vit",
    "deep": "[" * 100_000,
    "digits": f'{{"hidden_size": {"9" * 5000}}}',
}


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
@pytest.mark.parametrize("content", BAD_JSON.values(), ids=BAD_JSON)
def test_other_files_are_one_sentence(name, content, tmp_path):
    write(tmp_path, name, content)
    if name == "preprocessor_config.json":
        fails(tmp_path, "cannot be read: it is not valid JSON")
    else:
        with pytest.raises(EtagError, match=rf"^'{tmp_path}/config\.json' cannot be read: it is not valid JSON\.$"):
            read_config(tmp_path)


def test_a_list_is_not_a_configuration(tmp_path):
    for name in ("config.json", "preprocessor_config.json"):
        write(tmp_path, name, [1, 2])
    fails(tmp_path, "cannot be used: it is not a group of keys and values")
    with pytest.raises(EtagError, match=r"config\.json' cannot be used: it is not a group of keys and values\.$"):
        read_config(tmp_path)


def test_a_pipe_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(EtagError, match=r"config\.json cannot be read: not a regular file"):
        read_config(tmp_path)


def test_a_very_large_file_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(hugging_face, "LIMIT", 1000)
    write(tmp_path, "config.json", "[" + "1, " * 1000)
    with pytest.raises(EtagError, match=r"config\.json cannot be read: it is larger than"):
        read_config(tmp_path)


# -- configuration and weights -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", SMALL)
def test_the_configuration_is_reduced_to_what_is_known(family, tmp_path):
    extra = {"auto_map": {"AutoModel": "evil.Model"}, "id2label": {"0": "cat"}, "unknown": float("nan")}
    write(tmp_path, "config.json", architecture(family) | extra)
    values = read_config(tmp_path)
    assert values.items() >= architecture(family).items()
    assert not values.keys() & extra.keys()
    assert json.loads(json.dumps(values)) == values


def test_the_file_of_weights(tmp_path):
    with pytest.raises(EtagError, match=r"^there are no weights in '.*': it needs model\.safetensors or pytorch_model"):
        weights_file(tmp_path)
    for name in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        write(tmp_path, name, {})
        with pytest.raises(EtagError, match=r"^the weights in '.*' are split into several files: save them as one"):
            weights_file(tmp_path)
        (tmp_path / name).unlink()
    for name in ("pytorch_model.bin", "model.safetensors"):
        write(tmp_path, name, "")
        assert weights_file(tmp_path) == tmp_path / name


# -- the Hub: the network is never used --------------------------------------------------------------------------------

OWNER = "models--owner--name"
BAD_NAMES = ["", "name", "a/b/c", "../..", "a/..", "a/b@", "a/b@../c", "a/b c", "/b", "a/", "a/" + "b" * 99]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty cache, and a Hub that nobody runs."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return tmp_path / "cache"


def fill(cache, *names):
    """Put files into the cache as if they had been downloaded."""
    folder = cache / OWNER / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    for name in names:
        write(folder, name, "{}")
    (cache / OWNER / "refs").mkdir()
    (cache / OWNER / "refs" / "main").write_text(COMMIT)
    return folder


def refused(source, pattern):
    with pytest.raises(EtagError, match=pattern) as error:
        download(source)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # it is not even asked
    refused(f"hf:{name}", r"^'hf:.* does not have the form hf:OWNER/NAME or hf:OWNER/NAME@REVISION\.$")


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused("hf:owner/name", r"^names that begin with hf: need one more package: pip install 'etag-cil\[hub\]'\.$")


def test_without_a_network(hub):
    refused(
        "hf:owner/name",
        r"^owner/name cannot be loaded from the Hugging Face Hub \(.*refused.*\): check the network connection, or set "
        r"model\.weights to a directory that has its files\.$",
    )


def test_offline(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused("hf:owner/name", r"\(HF_HUB_OFFLINE is set\): unset it, or set model\.weights to a directory")


@pytest.mark.parametrize("offline", [False, True])
def test_what_was_downloaded_before_is_used_without_a_network(offline, hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    folder = fill(hub, "config.json", "model.safetensors")
    assert download("hf:owner/name") == folder
    assert download(f"hf:owner/name@{COMMIT}") == folder
    refused("hf:owner/name@other", "cannot be loaded from the Hugging Face Hub")


def test_an_incomplete_download_is_not_used(hub):
    fill(hub, "config.json")
    refused("hf:owner/name", "check the network connection")


def test_what_is_asked_of_the_hub(hub, monkeypatch, tmp_path):
    asked = []

    def snapshot_download(name, **options):
        asked.append((name, options))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda self, name, revision, timeout: asked.append(timeout))
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert download("hf:owner/name@v1.0") == tmp_path
    files = ["config.json", "preprocessor_config.json", "model.safetensors", "model.safetensors.index.json"]
    assert asked == [10, ("owner/name", {"revision": "v1.0", "allow_patterns": files})]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("RepositoryNotFoundError", r"\(there is no such public repository\): correct the name, or `hf auth login`\.$"),
        (
            "GatedRepoError",
            r"\(its owner admits only some users\): ask for access on its page, then `hf auth login`\.$",
        ),
        ("RevisionNotFoundError", r"\(it has no revision v9\): correct the part after @\.$"),
    ],
)
def test_what_the_hub_refuses(kind, message, hub, monkeypatch):
    from huggingface_hub import errors

    def model_info(self, name, **options):
        error = getattr(errors, kind)
        raise error.__new__(error)

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
    refused("hf:owner/name@v9", message)
