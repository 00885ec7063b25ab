import io
import json
import os
import pickle
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from etag.core.errors import EtagError
from etag.data.images import EncodedImages, content_keys
from etag.data.scenario import build_scenario
from etag.data.source import SOURCES, DataOptions


def opened(folder):
    """The data set, with all its images decoded."""
    dataset = SOURCES["cifar100"].open(DataOptions(name="cifar100", path=str(folder)))
    parts = {name: getattr(dataset, name) for name in ("train", "test")}
    decoded = {name: part.in_memory() for name, part in parts.items() if isinstance(part, EncodedImages)}
    return replace(dataset, **decoded)


# -- the real files --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cifar(shared_data):
    """The real data set, loaded once."""
    return opened(shared_data / "cifar100")


@pytest.mark.slow
def test_the_real_data_is_complete(cifar):
    assert cifar.train.labels.bincount().tolist() == [500] * 100
    assert cifar.test.labels.bincount().tolist() == [100] * 100
    for part in (cifar.train, cifar.test):
        assert part.pixels.shape == (len(part), 3, 32, 32)
        assert part.pixels.dtype == torch.uint8
        assert part.pixels.is_contiguous()


@pytest.mark.slow
def test_the_real_data_has_class_names(cifar, shared_data):
    assert (cifar.classes[0], cifar.classes[8], cifar.classes[99]) == ("apple", "bicycle", "worm")
    assert len(set(cifar.classes)) == 100


def test_the_channels_are_red_green_blue(cifar):
    center = cifar.train.pixels.float().mean((0, 2, 3)) / 255
    # the usual constants, .4914 .4822 .4465, are those of CIFAR-10; here red is brightest, blue darkest
    assert center.tolist() == pytest.approx([0.5071, 0.4866, 0.4409], abs=5e-4)
    assert cifar.mean == (0.4914, 0.4822, 0.4465)
    assert cifar.std == (0.2023, 0.1994, 0.2010)
    assert cifar.flip is True


# -- small parquet files ---------------------------------------------------------------------------


def png(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="PNG")
    return file.getvalue()


def write_cifar(folder, images=6, names=None, columns=("img", "fine_label")):
    """Write both parquet files with random images of two classes; return the pixels."""
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


def test_parquet_pixels_are_unchanged_with_channels_first(tmp_path):
    pixels = write_cifar(tmp_path, names=["hay", "sky"])
    read = opened(tmp_path)
    assert np.array_equal(read.train.pixels.numpy(), pixels.transpose(0, 3, 1, 2))
    assert read.test.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert read.classes == ("hay", "sky")


def test_enlarged_images_are_decoded_when_they_are_read(tmp_path):
    write_cifar(tmp_path)
    scenario, _ = build_scenario(DataOptions(name="cifar100", path=str(tmp_path), size=48), "b0-1x2", 0)
    images = scenario.tasks[0].train
    assert isinstance(images, EncodedImages)
    memory = images.in_memory()
    rows = [torch.tensor([4, 1]), torch.tensor([0])]
    for found, expected in zip(images.read(rows), memory.read(rows), strict=True):
        assert found.shape[1:] == (3, 48, 48)
        assert torch.equal(found, expected)
    joined = images.select(torch.tensor([2])).join([images.select(torch.tensor([5, 0]))])
    assert torch.equal(joined.pixels, memory.pixels[[2, 5, 0]])
    assert joined.labels.tolist() == memory.labels[[2, 5, 0]].tolist()


def test_keys_of_images_need_no_decoding(tmp_path, monkeypatch):
    write_cifar(tmp_path)
    train = SOURCES["cifar100"].open(DataOptions(name="cifar100", path=str(tmp_path))).train
    monkeypatch.setattr("etag.data.sources.cifar100.decode_bytes", None)
    keys = content_keys(train)
    assert len(set(keys)) == 6
    assert content_keys(train.select(torch.tensor([3, 3, 0]))) == [keys[3], keys[3], keys[0]]


def test_the_order_of_the_columns_does_not_matter(tmp_path):
    import pyarrow.parquet

    pixels = write_cifar(tmp_path)
    for file in tmp_path.iterdir():
        table = pyarrow.parquet.read_table(file)
        pyarrow.parquet.write_table(table.select(["fine_label", "img"]), file)
    read = opened(tmp_path)
    assert np.array_equal(read.train.pixels.numpy(), pixels.transpose(0, 3, 1, 2))
    assert read.test.labels.tolist() == [0, 1, 0, 1, 0, 1]


def test_without_class_names_in_the_schema_classes_are_numbers(tmp_path):
    write_cifar(tmp_path)
    assert opened(tmp_path).classes == ("0", "1")


def test_data_path_is_searched_before_etag_data_and_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ETAG_DATA", str(tmp_path / "env"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folders = {"cache": tmp_path / "cache" / "etag" / "cifar100", "env": tmp_path / "env" / "cifar100"}
    for name in ("cache", "env"):  # ETAG_DATA is searched first
        write_cifar(folders[name], names=[name, "other"])
        scenario, _ = build_scenario(DataOptions(name="cifar100", order="natural"), "b1-1x1", 0)
        assert scenario.classes[0] == name
    write_cifar(tmp_path / "here", names=["option", "other"])
    options = DataOptions(name="cifar100", order="natural", path=str(tmp_path / "here"))
    assert build_scenario(options, "b1-1x1", 0)[0].classes[0] == "option"


def test_the_real_data_is_found_through_etag_data(shared_data, monkeypatch):
    monkeypatch.setenv("ETAG_DATA", str(shared_data))
    assert SOURCES["cifar100"].find() == shared_data / "cifar100"


def test_missing_data_is_an_error_that_lists_the_folders_searched(tmp_path, monkeypatch):
    monkeypatch.setenv("ETAG_DATA", str(tmp_path / "env"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(EtagError) as caught:
        build_scenario(DataOptions(name="cifar100"), "b50-5x10", 0)
    assert str(caught.value) == (
        "data 'cifar100' was not found: train.parquet and test.parquet, or cifar-100-python/train and "
        f"cifar-100-python/test, or cifar-100-python.tar.gz should be in {tmp_path}/env/cifar100 or "
        f"{tmp_path}/cache/etag/cifar100; set another folder with --set data.path=DIR or the environment variable "
        "ETAG_DATA."
    )


def test_a_missing_data_path_is_an_error_even_if_other_folders_have_the_data(tmp_path, monkeypatch):
    monkeypatch.setenv("ETAG_DATA", str(tmp_path))
    write_cifar(tmp_path / "cifar100")
    with pytest.raises(EtagError, match=f"should be in {tmp_path}/nowhere; set another"):
        opened(tmp_path / "nowhere")


def test_a_tilde_is_expanded_to_the_home_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ETAG_DATA", "~/data")
    assert SOURCES["cifar100"].search_folders(None)[0] == tmp_path / "data" / "cifar100"
    assert SOURCES["cifar100"].search_folders("~/here") == [Path(tmp_path) / "here"]


def flat_images(folder):
    import pyarrow as pa
    import pyarrow.parquet

    write_cifar(folder)
    pyarrow.parquet.write_table(pa.table({"img": [b"png"], "fine_label": [0]}), folder / "train.parquet")


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "train.parquet").write_bytes(b""),
        lambda folder: (folder / "train.parquet").write_bytes(b"PAR1 but not a table PAR1"),
        lambda folder: (folder / "train.parquet").write_bytes((folder / "train.parquet").read_bytes()[:-200]),
        lambda folder: write_cifar(folder, columns=("image", "fine_label")),
        lambda folder: write_cifar(folder, columns=("img", "label")),
        flat_images,
        lambda folder: write_cifar(folder, images=0),
    ],
    ids=["empty", "garbage", "truncated", "no images", "no labels", "images of another type", "no rows"],
)
def test_a_damaged_parquet_file_is_an_error(tmp_path, damage):
    write_cifar(tmp_path)
    damage(tmp_path)
    with pytest.raises(EtagError, match=r"train.parquet cannot be read as CIFAR-100 \(.+\): download it again\.$"):
        opened(tmp_path)


@pytest.mark.parametrize("kind", ["text", "truncated", "a chunk too short", "bomb", "another size"])
def test_a_damaged_image_in_a_parquet_file_is_an_error(tmp_path, png_bytes, kind):
    import pyarrow as pa
    import pyarrow.parquet

    valid = png(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))
    contents = {
        "text": b"no png",
        "truncated": valid[:-500],
        "a chunk too short": valid[:33] + b"\0\0\0\x20" + valid[37:],
        "bomb": png_bytes(20_000, 20_000),
        "another size": png(np.zeros((8, 8, 3), np.uint8)),
    }
    write_cifar(tmp_path)
    images = [{"bytes": content, "path": None} for content in (valid, contents[kind])]
    pyarrow.parquet.write_table(pa.table({"img": images, "fine_label": [0, 1]}), tmp_path / "test.parquet")
    with pytest.raises(EtagError, match=r"test.parquet cannot be read as CIFAR-100"):
        opened(tmp_path)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    """One folder for all examples of a test."""
    return tmp_path_factory.mktemp("fuzzed")


@settings(max_examples=80)
@given(
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4),
    share=st.floats(0.2, 1),
)
@pytest.mark.filterwarnings("ignore")
def test_a_corrupted_image_is_read_or_an_error(fuzzed, changes, share):
    import pyarrow as pa
    import pyarrow.parquet

    content = bytearray(png(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)))
    for position, value in changes:
        content[int(position**3 * len(content))] = value  # mostly in the header, where it matters
    image = {"bytes": bytes(content[: int(share * len(content))]), "path": None}
    for part in ("train", "test"):
        pyarrow.parquet.write_table(pa.table({"img": [image], "fine_label": [0]}), fuzzed / f"{part}.parquet")
    try:
        result = f"{len(opened(fuzzed).train)} image"
    except EtagError as error:
        result = str(error)
    assert "train.parquet cannot be read as CIFAR-100" in result or result == "1 image"


# -- the official files: three pickles, written by Python 2, in a folder or an archive -------------

COUNT = 200
UNREADABLE = r"(cannot be read as CIFAR-100 \(.+\): download it again|is none of the \d+ classes)\.$"


def save_string(pickler, text):
    """Write text as a byte string, as Python 2 does."""
    content = text.encode() if isinstance(text, str) else text
    pickler.write(pickle.BINSTRING + struct.pack("<i", len(content)) + content)
    pickler.memoize(text)


def by_python_2(value):
    file = io.BytesIO()
    pickler = pickle._Pickler(file, protocol=2)
    pickler.dispatch = pickler.dispatch | {str: save_string, bytes: save_string}
    pickler.dump(value)
    return file.getvalue().replace(b"cnumpy._core.", b"cnumpy.core.")  # its name in old versions of NumPy


def by_python_3(value):
    return pickle.dumps(value, protocol=2)


def part(pixels, labels, name):
    """Return the contents of the train or test file; pixels are (n, 3, 32, 32)."""
    return {
        b"filenames": [f"image_{number}.png".encode() for number in range(len(labels))],
        b"batch_label": name,
        b"fine_labels": list(labels),
        b"coarse_labels": [label // 5 for label in labels],
        b"data": pixels.reshape(len(pixels), 3072),
    }


def packed(contents):
    """Return the bytes of a gzipped archive of {name: bytes}."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"cifar-100-python/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def lay_out(folder, contents, archive):
    """Write {name: bytes} as an archive or a folder; return the folder that the source searches."""
    if archive:
        folder.mkdir(exist_ok=True)
        (folder / "cifar-100-python.tar.gz").write_bytes(packed(contents))
        return folder
    (folder / "cifar-100-python").mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / "cifar-100-python" / name).write_bytes(content)
    return folder


# -- the official files with real images -----------------------------------------------------------


@pytest.fixture(scope="module")
def real(shared_data, tmp_path_factory):
    """Some real images as a loaded data set, and the same as contents of the official files, not yet pickled."""
    import pyarrow.parquet

    folder, contents = tmp_path_factory.mktemp("parquet"), {}
    all_rows = pyarrow.parquet.read_table(shared_data / "cifar100" / "test.parquet")
    for name, start in (("train", 0), ("test", COUNT)):
        table = all_rows.slice(start, COUNT)
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet")
        images = [np.asarray(Image.open(io.BytesIO(image["bytes"]))) for image in table.column("img").to_pylist()]
        labels = table.column("fine_label").to_pylist()
        contents[name] = part(np.stack(images).transpose(0, 3, 1, 2), labels, name.encode())
    read = opened(folder)
    contents["meta"] = {
        b"fine_label_names": [name.encode() for name in read.classes],
        b"coarse_label_names": [f"group {number}".encode() for number in range(20)],
    }
    return read, contents


@pytest.mark.parametrize("dump", [by_python_2, by_python_3])
@pytest.mark.parametrize("archive", [True, False])
def test_the_official_files_give_the_same_images_as_parquet(real, tmp_path, dump, archive):
    expected, contents = real
    read = opened(lay_out(tmp_path, {name: dump(value) for name, value in contents.items()}, archive))
    for images, same in ((read.train, expected.train), (read.test, expected.test)):
        assert torch.equal(images.pixels, same.pixels)
        assert torch.equal(images.labels, same.labels)
        assert images.pixels.is_contiguous()
    assert read.classes == expected.classes
    assert (read.classes[8], len(read.classes)) == ("bicycle", 100)
    assert (read.mean, read.std, read.size, read.flip) == (expected.mean, expected.std, 32, True)


# -- the official files with artificial images -----------------------------------------------------


def few(count=4, **changes):
    """Return {name: bytes} of a small data set; `changes` replace contents before they are pickled."""
    pixels = (np.arange(count * 3072) // 7 % 256).astype(np.uint8).reshape(count, 3, 32, 32)
    contents = {name: part(pixels, range(count), name.encode()) for name in ("train", "test")}
    contents["meta"] = {b"fine_label_names": [f"class {number}".encode() for number in range(count)]}
    return {name: by_python_2(value) for name, value in (contents | changes).items()}


@pytest.mark.parametrize("used", ["parquet", "folder", "archive"])
def test_parquet_is_preferred_to_the_folder_and_the_folder_to_the_archive(tmp_path, used):
    lay_out(tmp_path, few(3), archive=True)
    if used != "archive":
        lay_out(tmp_path, few(4), archive=False)
    if used == "parquet":
        for name in ("train", "test"):
            (tmp_path / f"{name}.parquet").write_bytes(b"not parquet")
        with pytest.raises(EtagError, match=r"train\.parquet cannot be read"):
            opened(tmp_path)
    else:
        assert len(opened(tmp_path).train) == {"archive": 3, "folder": 4}[used]


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("missing", ["train", "test", "meta"])
def test_a_missing_official_file_is_named_in_the_error(tmp_path, archive, missing):
    contents = few()
    del contents[missing]
    with pytest.raises(EtagError, match=missing):
        opened(lay_out(tmp_path, contents, archive))


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.8])
def test_a_truncated_archive_is_an_error(tmp_path, share):
    archive = packed(few())
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(archive[: int(share * len(archive))])
    with pytest.raises(EtagError, match=rf"cifar-100-python.tar.gz {UNREADABLE}"):
        opened(tmp_path)


@pytest.mark.parametrize("position", [0.1, 0.3, 0.5, 0.7])
def test_an_archive_with_overwritten_bytes_is_an_error(tmp_path, position):
    archive = bytearray(packed(few()))
    start = int(position * len(archive))
    archive[start : start + 40] = bytes(40)
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(archive)
    with pytest.raises(EtagError, match=rf"cifar-100-python.tar.gz {UNREADABLE}"):
        opened(tmp_path)


@pytest.mark.parametrize("end", [0, 1, 0.5, -1])
def test_a_truncated_pickle_is_an_error(tmp_path, end):
    contents = few()
    valid = contents["train"]
    contents["train"] = valid[: int(end * len(valid))] if isinstance(end, float) else valid[:end]
    with pytest.raises(EtagError, match=UNREADABLE):
        opened(lay_out(tmp_path, contents, archive=False))


PIXELS = np.zeros((4, 3072), np.uint8)


@pytest.mark.parametrize(
    "changes",
    [
        {"train": [1, 2, 3]},
        {"train": {}},
        {"train": {b"data": PIXELS, b"fine_labels": [0, 1, 2]}},
        {"train": {b"data": PIXELS[:, :-1], b"fine_labels": [0, 1, 2, 3]}},
        {"train": {b"data": PIXELS, b"fine_labels": "text"}},
        {"train": {b"data": PIXELS, b"fine_labels": [2**80] * 4}},
        {"train": {b"data": [[300] * 3072] * 4, b"fine_labels": [0, 1, 2, 3]}},
        {"meta": {b"fine_label_names": 7}},
        {"meta": {b"fine_label_names": [7]}},
    ],
    ids=[
        "a list",
        "nothing",
        "a label too few",
        "other images",
        "labels of text",
        "a huge label",
        "a value above 255",
        "no names",
        "names of a wrong type",
    ],
)
def test_unexpected_contents_of_a_pickle_are_an_error(tmp_path, changes):
    with pytest.raises(EtagError, match=UNREADABLE):
        opened(lay_out(tmp_path, few(**changes), archive=False))


@pytest.mark.parametrize("label", [4, 100, -1])
def test_a_label_without_a_class_name_is_an_error(tmp_path, label):
    """Neither skipped silently, nor counted from the end."""
    changed = {"test": {b"data": PIXELS, b"fine_labels": [0, 1, 2, label]}}
    with pytest.raises(EtagError, match=rf"the label {label} is none of the 4 classes"):
        opened(lay_out(tmp_path, few(**changed), archive=False))


# -- pickles that would run code -------------------------------------------------------------------


class Evil:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def attacks(file):
    return {
        "os.system": Evil(os.system, f"touch {file}"),
        "open": Evil(open, str(file), "w"),
        "exec": Evil(exec, f"open({str(file)!r}, 'w')"),
        "np.save": Evil(np.save, str(file), [1]),
        "np.ndarray.tofile": Evil(np.ndarray.tofile, np.zeros(3), str(file)),
    }


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("attack", ["os.system", "open", "exec", "np.save", "np.ndarray.tofile"])
def test_code_in_a_pickle_is_not_run(tmp_path, archive, protocol, attack):
    file = tmp_path / "written.npy"
    evil = attacks(file)[attack]
    # an ordinary unpickler runs it
    pickle.loads(pickle.dumps(evil, protocol))
    assert file.exists()
    file.unlink()
    content = pickle.dumps({b"data": evil, b"fine_labels": [0]}, protocol)
    with pytest.raises(EtagError, match=r"it refers to .*, which CIFAR-100 does not need"):
        opened(lay_out(tmp_path / "data", few() | {"train": content}, archive))
    assert not file.exists()


@pytest.mark.parametrize(
    "name",
    [
        "numpy\nload",
        "numpy\ndtype.__class__",
        "numpy.core.multiarray\nfromfile",
        "numpy.core.numeric\nndarray",
        "_codecs\ndecode",
        "os\nsystem",
    ],
)
def test_names_similar_to_the_allowed_ones_are_refused(tmp_path, name):
    content = b"c" + name.encode() + b"\n."  # a pickle of that name only
    with pytest.raises(EtagError, match=f"it refers to {name.replace(chr(10), '.')}"):
        opened(lay_out(tmp_path, few() | {"meta": content}, archive=False))


# -- fuzzing the official files --------------------------------------------------------------------


@pytest.fixture(scope="module")
def corrupted(tmp_path_factory):
    """corrupted(content) -> a folder with only an archive of these bytes."""
    folder = tmp_path_factory.mktemp("corrupted")

    def write(content):
        (folder / "cifar-100-python.tar.gz").write_bytes(content)
        return folder

    return write


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """A folder for the files of an archive."""
    return tmp_path_factory.mktemp("unpacked")


def assert_read_or_error(folder):
    try:
        result = f"{len(opened(folder).train)} images"
    except EtagError as error:
        result = str(error)
    is_error = "cannot be read as CIFAR-100" in result or "is none of the" in result
    assert is_error or result in ("2 images", "4 images")


CHANGES = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=5)


def changed(content, changes):
    content = bytearray(content)
    for position, value in changes:
        content[int(position**2 * len(content))] = value
    return bytes(content)


@settings(max_examples=100)
@given(content=st.binary(max_size=600))
def test_random_bytes_as_archive_are_an_error(corrupted, content):
    with pytest.raises(EtagError, match=r"tar\.gz cannot be read as CIFAR-100"):
        opened(corrupted(content))


@settings(max_examples=150)
@given(changes=CHANGES)
def test_a_corrupted_archive_is_read_or_an_error(corrupted, changes):
    assert_read_or_error(corrupted(changed(packed(few()), changes)))


@settings(max_examples=200)
@given(content=st.binary(max_size=40))
def test_random_bytes_as_pickle_are_an_error(unpacked, content):
    with pytest.raises(EtagError, match="cannot be read as CIFAR-100"):
        opened(lay_out(unpacked, few() | {"train": content}, archive=False))


@settings(max_examples=300)
@given(which=st.sampled_from(["train", "test", "meta"]), changes=CHANGES)
def test_a_corrupted_pickle_is_read_or_an_error(unpacked, which, changes):
    contents = few(2)
    contents[which] = changed(contents[which], changes)
    assert_read_or_error(lay_out(unpacked, contents, archive=False))
