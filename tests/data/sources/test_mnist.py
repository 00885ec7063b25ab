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
    """The real data set, opened once."""
    return mnist(shared_data / "mnist")


def test_mnist_is_complete(real):
    assert real.train.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert real.test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert real.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert real.test.labels[:5].tolist() == [7, 2, 1, 0, 4]
    for part in (real.train, real.test):
        assert part.pixels.shape == (len(part), 1, 28, 28)
        assert (part.pixels.dtype, part.labels.dtype) == (torch.uint8, torch.int64)
    assert real.classes == tuple("0123456789")


def test_its_constants_are_those_of_its_training_images(real):
    pixels = real.train.pixels.double() / 255
    assert real.mean[0] == pytest.approx(pixels.mean().item(), abs=1e-4)
    assert real.std[0] == pytest.approx(pixels.std().item(), abs=1e-4)
    assert real.flip is False
    assert real.size == 28


def test_without_gzip_it_is_the_same(real, shared_data, tmp_path):
    for name in NAMES:
        (tmp_path / name).write_bytes(gzip.decompress((shared_data / "mnist" / f"{name}.gz").read_bytes()))
    plain = mnist(tmp_path)
    for ours, theirs in ((real.train, plain.train), (real.test, plain.test)):
        assert torch.equal(ours.pixels, theirs.pixels)
        assert torch.equal(ours.labels, theirs.labels)


def test_it_becomes_a_scenario_of_any_size(shared_data):
    options = DataOptions(name="mnist", path=str(shared_data / "mnist"), size=32, train_per_class=5, test_per_class=2)
    scenario, preprocess = build_scenario(options, "b0-5x2", seed=0)
    assert [len(task.train) for task in scenario] == [10] * 5
    assert scenario.tasks[0].test.pixels.shape == (4, 1, 32, 32)
    assert (scenario.channels, preprocess.size, preprocess.flip) == (1, 32, False)


# -- small files of the same kind ------------------------------------------------------------------


def idx(array, kind=0x08):
    """The bytes of an idx file."""
    return struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write(folder, count=6, zipped=True):
    """All four files; the labels are 0, 1, 2, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(0).integers(0, 256, (count, 28, 28))
    for name in NAMES:
        content = idx(images if "images" in name else np.arange(count))
        (folder / (f"{name}.gz" if zipped else name)).write_bytes(gzip.compress(content) if zipped else content)
    return images


@pytest.mark.parametrize("zipped", [True, False])
def test_images_and_labels_arrive_unchanged(tmp_path, zipped):
    images = write(tmp_path, zipped=zipped)
    read = mnist(tmp_path)
    for part in (read.train, read.test):
        assert np.array_equal(part.pixels[:, 0], images)
        assert part.labels.tolist() == list(range(6))


@pytest.mark.parametrize("name", NAMES)
def test_a_file_cut_short_is_named(tmp_path, name):
    write(tmp_path, zipped=False)
    content = (tmp_path / name).read_bytes()
    for kept in (content[:-1], content[:9], content[:3], b"", content + b"\0"):
        (tmp_path / name).write_bytes(kept)
        with pytest.raises(EtagError, match=rf"{name} is no idx file of \d dimension\(s\), or is cut short"):
            mnist(tmp_path)


@pytest.mark.parametrize(
    "content",
    [idx(np.zeros((6, 28, 28)), kind=0x0D), idx(np.zeros((6, 784))), b"GIF89a" * 100, b"\x80" * 100],
    ids=["floats", "two dimensions", "another file", "huge sizes"],
)
def test_another_kind_of_file_is_refused(tmp_path, content):
    write(tmp_path, zipped=False)
    (tmp_path / NAMES[0]).write_bytes(content)
    with pytest.raises(EtagError, match=f"{NAMES[0]} is no idx file of 3 dimension"):
        mnist(tmp_path)


@pytest.mark.parametrize("kept", [slice(0), slice(5), slice(-20), slice(-4), slice(20, None)])
def test_a_spoilt_gzip_is_named(tmp_path, kept):
    write(tmp_path)
    file = tmp_path / f"{NAMES[2]}.gz"
    file.write_bytes(file.read_bytes()[kept])
    with pytest.raises(EtagError, match=r"t10k-images-idx3-ubyte\.gz "):  # the file that is there
        mnist(tmp_path)


def test_every_image_needs_its_label(tmp_path):
    write(tmp_path, zipped=False)
    (tmp_path / NAMES[3]).write_bytes(idx(np.arange(5)))
    with pytest.raises(EtagError, match="the test files hold 6 images, but 5 labels"):
        mnist(tmp_path)


def test_a_label_that_is_no_digit_is_refused(tmp_path):
    """Not quietly left out, as most of EMNIST's letters would be."""
    write(tmp_path, zipped=False)
    (tmp_path / NAMES[1]).write_bytes(idx(np.array([0, 1, 2, 3, 4, 10])))
    with pytest.raises(EtagError, match="the label 10 is none of the 10 classes"):
        build_scenario(DataOptions(name="mnist", path=str(tmp_path)), "b0-1x5", seed=0)


def test_files_without_images_are_refused(tmp_path):
    write(tmp_path, count=0, zipped=False)
    with pytest.raises(EtagError, match="there are no images to train with of: "):
        build_scenario(DataOptions(name="mnist", path=str(tmp_path)), "b0-1x5", seed=0)


def test_all_four_files_must_be_there(tmp_path):
    write(tmp_path)
    (tmp_path / f"{NAMES[3]}.gz").unlink()
    with pytest.raises(EtagError, match=rf"'mnist' was not found: {NAMES[0]}.gz and .*, or {NAMES[0]} and"):
        mnist(tmp_path)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A folder of small files and the bytes of the first."""
    folder = tmp_path_factory.mktemp("mnist")
    write(folder, zipped=False)
    return folder, (folder / NAMES[0]).read_bytes()


@settings(max_examples=200)
@given(content=st.one_of(st.binary(max_size=64), st.binary(max_size=64).map(lambda tail: b"\0\0\x08\x03" + tail)))
def test_random_bytes_are_refused(small, content):
    folder, _ = small
    (folder / NAMES[0]).write_bytes(content)
    with pytest.raises(EtagError):
        mnist(folder)


@settings(max_examples=200)
@given(
    changes=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 255)), max_size=4),
    kept=st.integers(0, 30),
    zipped=st.booleans(),
)
def test_a_changed_file_is_read_or_refused(small, changes, kept, zipped):
    folder, whole = small
    content = bytearray(gzip.compress(whole) if zipped else whole)
    for place, value in changes:
        content[place] = value
    file = folder / (f"{NAMES[0]}.gz" if zipped else NAMES[0])
    file.write_bytes(content[: len(content) - kept // 10])
    try:
        said = tuple(mnist(folder).train.pixels.shape)
    except EtagError as error:
        said = str(error)
    (folder / f"{NAMES[0]}.gz").unlink(missing_ok=True)
    assert said == (6, 1, 28, 28) or NAMES[0] in said or "images, but" in said
