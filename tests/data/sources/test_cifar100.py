import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from etag.core.errors import EtagError
from etag.data.scenario import build_scenario
from etag.data.source import SOURCES, DataOptions


def opened(folder):
    return SOURCES["cifar100"].open(DataOptions(name="cifar100", path=str(folder)))


# -- CIFAR-100 on the real files -------------------------------------------------------------------


@pytest.fixture(scope="module")
def cifar(shared_data):
    """The real data set, opened once."""
    return opened(shared_data / "cifar100")


def test_cifar100_is_complete(cifar):
    assert cifar.train.labels.bincount().tolist() == [500] * 100
    assert cifar.test.labels.bincount().tolist() == [100] * 100
    for part in (cifar.train, cifar.test):
        assert part.pixels.shape == (len(part), 3, 32, 32)
        assert part.pixels.dtype == torch.uint8
        assert part.pixels.is_contiguous()


def test_cifar100_knows_the_names_of_its_classes(cifar, shared_data):
    assert (cifar.classes[0], cifar.classes[8], cifar.classes[99]) == ("apple", "bicycle", "worm")
    assert len(set(cifar.classes)) == 100


def test_cifar100_channels_are_red_green_blue(cifar):
    center = cifar.train.pixels.float().mean((0, 2, 3)) / 255
    # the usual constants say .4914, .4822, .4465 (they are CIFAR-10's); red is brightest, blue darkest
    assert center.tolist() == pytest.approx([0.5071, 0.4866, 0.4409], abs=5e-4)
    assert cifar.mean == (0.4914, 0.4822, 0.4465)
    assert cifar.std == (0.2023, 0.1994, 0.2010)
    assert cifar.flip is True


# -- CIFAR-100 on small files of the same kind -----------------------------------------------------


def png(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="PNG")
    return file.getvalue()


def write_cifar(folder, images=6, names=None, columns=("img", "fine_label")):
    """Both parquet files, with images of random noise in two classes."""
    import pyarrow as pa
    import pyarrow.parquet

    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (images, 32, 32, 3), dtype=np.uint8)
    encoded = [{"bytes": png(image), "path": None} for image in pixels]
    labels = pa.array([number % 2 for number in range(images)], pa.int64())
    image = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    table = pa.table({columns[0]: pa.array(encoded, image), columns[1]: labels})
    if names:
        features = {"info": {"features": {"fine_label": {"names": names}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    for part in ("train", "test"):
        pyarrow.parquet.write_table(table, folder / f"{part}.parquet")
    return pixels


def test_pixels_arrive_unchanged_with_channels_first(tmp_path):
    pixels = write_cifar(tmp_path, names=["hay", "sky"])
    read = opened(tmp_path)
    assert np.array_equal(read.train.pixels.numpy(), pixels.transpose(0, 3, 1, 2))
    assert read.test.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert read.classes == ("hay", "sky")


def test_without_names_in_the_schema_classes_are_numbers(tmp_path):
    write_cifar(tmp_path)
    assert opened(tmp_path).classes == ("0", "1")


def test_data_path_goes_before_etag_data_before_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ETAG_DATA", str(tmp_path / "env"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    places = {"cache": tmp_path / "cache" / "etag" / "cifar100", "env": tmp_path / "env" / "cifar100"}
    for name in ("cache", "env"):  # the later one is found first
        write_cifar(places[name], names=[name, "other"])
        scenario, _ = build_scenario(DataOptions(name="cifar100", order="natural"), "b1-1x1", 0)
        assert scenario.classes[0] == name
    write_cifar(tmp_path / "here", names=["option", "other"])
    options = DataOptions(name="cifar100", order="natural", path=str(tmp_path / "here"))
    assert build_scenario(options, "b1-1x1", 0)[0].classes[0] == "option"


def test_the_real_data_is_found_through_etag_data(shared_data, monkeypatch):
    monkeypatch.setenv("ETAG_DATA", str(shared_data))
    assert SOURCES["cifar100"].find() == shared_data / "cifar100"


def test_where_data_was_looked_for_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("ETAG_DATA", str(tmp_path / "env"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(EtagError) as caught:
        build_scenario(DataOptions(name="cifar100"), "b50-5x10", 0)
    assert str(caught.value) == (
        "data 'cifar100' was not found: train.parquet and test.parquet, or cifar-100-python/train and "
        f"cifar-100-python/test, or cifar-100-python.tar.gz should be in {tmp_path}/env/cifar100 or "
        f"{tmp_path}/cache/etag/cifar100; name another folder with --set data.path=DIR or the environment variable "
        "ETAG_DATA."
    )


def test_a_missing_path_is_not_replaced_by_another_place(tmp_path, monkeypatch):
    monkeypatch.setenv("ETAG_DATA", str(tmp_path))
    write_cifar(tmp_path / "cifar100")
    with pytest.raises(EtagError, match=f"should be in {tmp_path}/nowhere; name"):
        opened(tmp_path / "nowhere")


def test_a_home_directory_may_be_written_with_a_tilde(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ETAG_DATA", "~/data")
    assert SOURCES["cifar100"].places(None)[0] == tmp_path / "data" / "cifar100"
    assert SOURCES["cifar100"].places("~/here") == [Path(tmp_path) / "here"]


def flat_images(folder):
    import pyarrow as pa
    import pyarrow.parquet

    write_cifar(folder)
    pyarrow.parquet.write_table(pa.table({"img": [b"png"], "fine_label": [0]}), folder / "train.parquet")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "train.parquet").write_bytes(b""),
        lambda folder: (folder / "train.parquet").write_bytes(b"PAR1 but not a table PAR1"),
        lambda folder: (folder / "train.parquet").write_bytes((folder / "train.parquet").read_bytes()[:-200]),
        lambda folder: write_cifar(folder, columns=("image", "fine_label")),
        lambda folder: write_cifar(folder, columns=("img", "label")),
        flat_images,
        lambda folder: write_cifar(folder, images=0),
    ],
    ids=["empty", "rubbish", "cut short", "no images", "no labels", "images of another type", "no rows"],
)
def test_a_spoilt_file_is_named_in_one_sentence(tmp_path, spoil):
    write_cifar(tmp_path)
    spoil(tmp_path)
    with pytest.raises(EtagError, match=r"train.parquet cannot be read as CIFAR-100 \(.+\)\.$"):
        opened(tmp_path)


@pytest.mark.parametrize("kind", ["text", "cut", "a chunk too short", "bomb", "another size"])
def test_an_image_that_is_none_is_named_too(tmp_path, png_bytes, kind):
    import pyarrow as pa
    import pyarrow.parquet

    whole = png(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))
    contents = {
        "text": b"no png",
        "cut": whole[:-500],
        "a chunk too short": whole[:33] + b"\0\0\0\x20" + whole[37:],
        "bomb": png_bytes(20_000, 20_000),
        "another size": png(np.zeros((8, 8, 3), np.uint8)),
    }
    write_cifar(tmp_path)
    images = [{"bytes": content, "path": None} for content in (whole, contents[kind])]
    pyarrow.parquet.write_table(pa.table({"img": images, "fine_label": [0, 1]}), tmp_path / "test.parquet")
    with pytest.raises(EtagError, match=r"test.parquet cannot be read as CIFAR-100"):
        opened(tmp_path)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    """A folder of its own, for all examples of a test."""
    return tmp_path_factory.mktemp("fuzzed")


@settings(max_examples=80)
@given(
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4),
    kept=st.floats(0.2, 1),
)
@pytest.mark.filterwarnings("ignore")
def test_a_changed_image_is_read_or_refused(fuzzed, changes, kept):
    import pyarrow as pa
    import pyarrow.parquet

    content = bytearray(png(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)))
    for place, value in changes:
        content[int(place**3 * len(content))] = value  # mostly in the head, where it matters
    image = {"bytes": bytes(content[: int(kept * len(content))]), "path": None}
    for part in ("train", "test"):
        pyarrow.parquet.write_table(pa.table({"img": [image], "fine_label": [0]}), fuzzed / f"{part}.parquet")
    try:
        said = f"{len(opened(fuzzed).train)} image"
    except EtagError as error:
        said = str(error)
    assert "train.parquet cannot be read as CIFAR-100" in said or said == "1 image"
