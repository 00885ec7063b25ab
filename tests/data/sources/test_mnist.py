import gzip
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from etag.core.errors import EtagError
from etag.data.scenario import build_scenario
from etag.data.source import SOURCES, DataOptions

NAMES = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]


def mnist(folder):
    return SOURCES["mnist"].open(DataOptions(name="mnist", path=str(folder)))


# -- the real files --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(shared_data):
    """The real data set, loaded once."""
    return mnist(shared_data / "mnist")


def test_the_real_data_is_complete(real):
    assert real.train.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert real.test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert real.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert real.test.labels[:5].tolist() == [7, 2, 1, 0, 4]
    for part in (real.train, real.test):
        assert part.pixels.shape == (len(part), 1, 28, 28)
        assert (part.pixels.dtype, part.labels.dtype) == (torch.uint8, torch.int64)
    assert real.classes == tuple("0123456789")


def test_mean_and_std_are_those_of_the_training_images(real):
    pixels = real.train.pixels.double() / 255
    assert real.mean[0] == pytest.approx(pixels.mean().item(), abs=1e-4)
    assert real.std[0] == pytest.approx(pixels.std().item(), abs=1e-4)
    assert real.flip is False
    assert real.size == 28


def test_unzipped_files_give_the_same_images(real, shared_data, tmp_path):
    for name in NAMES:
        (tmp_path / name).write_bytes(gzip.decompress((shared_data / "mnist" / f"{name}.gz").read_bytes()))
    plain = mnist(tmp_path)
    for zipped, unzipped in ((real.train, plain.train), (real.test, plain.test)):
        assert torch.equal(zipped.pixels, unzipped.pixels)
        assert torch.equal(zipped.labels, unzipped.labels)


def test_a_scenario_can_have_any_image_size(shared_data):
    options = DataOptions(name="mnist", path=str(shared_data / "mnist"), size=32, train_per_class=5, test_per_class=2)
    scenario, preprocess = build_scenario(options, "b0-5x2", seed=0)
    assert [len(task.train) for task in scenario] == [10] * 5
    assert scenario.tasks[0].test.pixels.shape == (4, 1, 32, 32)
    assert (scenario.channels, preprocess.size, preprocess.flip) == (1, 32, False)


# -- small files -----------------------------------------------------------------------------------


def idx(array, kind=0x08):
    """Return the bytes of an idx file."""
    return struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write(folder, count=6, zipped=True):
    """Write all four files with labels 0, 1, 2, ...; return the images."""
    folder.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(0).integers(0, 256, (count, 28, 28))
    for name in NAMES:
        content = idx(images if "images" in name else np.arange(count))
        (folder / (f"{name}.gz" if zipped else name)).write_bytes(gzip.compress(content) if zipped else content)
    return images


@pytest.mark.parametrize("zipped", [True, False])
def test_images_and_labels_are_unchanged(tmp_path, zipped):
    images = write(tmp_path, zipped=zipped)
    read = mnist(tmp_path)
    for part in (read.train, read.test):
        assert np.array_equal(part.pixels[:, 0], images)
        assert part.labels.tolist() == list(range(6))


@pytest.mark.parametrize("name", NAMES)
def test_a_truncated_file_is_an_error(tmp_path, name):
    write(tmp_path, zipped=False)
    content = (tmp_path / name).read_bytes()
    for damaged in (content[:-1], content[:9], content[:3], b"", content + b"\0"):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(EtagError, match=rf"{name} is not an idx file of MNIST, or is cut off"):
            mnist(tmp_path)


@pytest.mark.parametrize(
    "content",
    [idx(np.zeros((6, 28, 28)), kind=0x0D), idx(np.zeros((6, 784))), b"GIF89a" * 100, b"\x80" * 100],
    ids=["floats", "two dimensions", "another file", "huge sizes"],
)
def test_another_kind_of_file_is_an_error(tmp_path, content):
    write(tmp_path, zipped=False)
    (tmp_path / NAMES[0]).write_bytes(content)
    with pytest.raises(EtagError, match=f"{NAMES[0]} is not an idx file of MNIST"):
        mnist(tmp_path)


@pytest.mark.parametrize("part", [slice(0), slice(5), slice(-20), slice(-4), slice(20, None)])
def test_a_damaged_gzip_file_is_an_error(tmp_path, part):
    write(tmp_path)
    file = tmp_path / f"{NAMES[2]}.gz"
    file.write_bytes(file.read_bytes()[part])
    with pytest.raises(EtagError, match=r"t10k-images-idx3-ubyte\.gz "):  # the zipped file, which exists
        mnist(tmp_path)


def test_different_numbers_of_images_and_labels_are_an_error(tmp_path):
    write(tmp_path, zipped=False)
    (tmp_path / NAMES[3]).write_bytes(idx(np.arange(5)))
    with pytest.raises(EtagError, match="the test files have 6 images but 5 labels"):
        mnist(tmp_path)


def test_a_label_above_9_is_an_error(tmp_path):
    """Images of other classes, such as EMNIST's letters, are not skipped silently."""
    write(tmp_path, zipped=False)
    (tmp_path / NAMES[1]).write_bytes(idx(np.array([0, 1, 2, 3, 4, 10])))
    with pytest.raises(EtagError, match="the label 10 is none of the 10 classes"):
        build_scenario(DataOptions(name="mnist", path=str(tmp_path)), "b0-1x5", seed=0)


def test_files_without_images_are_an_error(tmp_path):
    write(tmp_path, count=0, zipped=False)
    with pytest.raises(EtagError, match="these classes have no images to train with: "):
        build_scenario(DataOptions(name="mnist", path=str(tmp_path)), "b0-1x5", seed=0)


def test_all_four_files_are_needed(tmp_path):
    write(tmp_path)
    (tmp_path / f"{NAMES[3]}.gz").unlink()
    with pytest.raises(EtagError, match=rf"'mnist' was not found: {NAMES[0]}.gz and .*, or {NAMES[0]} and"):
        mnist(tmp_path)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A folder of small files, and the bytes of the first one."""
    folder = tmp_path_factory.mktemp("mnist")
    write(folder, zipped=False)
    return folder, (folder / NAMES[0]).read_bytes()


@settings(max_examples=200)
@given(content=st.one_of(st.binary(max_size=64), st.binary(max_size=64).map(lambda tail: b"\0\0\x08\x03" + tail)))
def test_random_bytes_are_an_error(small, content):
    folder, _ = small
    (folder / NAMES[0]).write_bytes(content)
    with pytest.raises(EtagError):
        mnist(folder)


@settings(max_examples=200)
@given(
    changes=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 255)), max_size=4),
    removed=st.integers(0, 30),
    zipped=st.booleans(),
)
def test_a_corrupted_file_is_read_or_an_error(small, changes, removed, zipped):
    folder, valid = small
    content = bytearray(gzip.compress(valid) if zipped else valid)
    for position, value in changes:
        content[position] = value
    file = folder / (f"{NAMES[0]}.gz" if zipped else NAMES[0])
    file.write_bytes(content[: len(content) - removed // 10])
    try:
        result = tuple(mnist(folder).train.pixels.shape)
    except EtagError as error:
        result = str(error)
    (folder / f"{NAMES[0]}.gz").unlink(missing_ok=True)
    assert result == (6, 1, 28, 28) or NAMES[0] in result or "images but" in result
