"""CIFAR-100 as its authors give it: three pickles, written by Python 2, in a folder or an archive."""

import io
import os
import pickle
import struct
import tarfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from etag.core.errors import EtagError
from etag.data.source import SOURCES, DataOptions

COUNT = 200


def opened(folder):
    return SOURCES["cifar100"].open(DataOptions(name="cifar100", path=str(folder)))


def save_string(pickler, text):
    """Write a text as the byte string it is in Python 2."""
    content = text.encode() if isinstance(text, str) else text
    pickler.write(pickle.BINSTRING + struct.pack("<i", len(content)) + content)
    pickler.memoize(text)


def by_python_2(value):
    file = io.BytesIO()
    pickler = pickle._Pickler(file, protocol=2)
    pickler.dispatch = pickler.dispatch | {str: save_string, bytes: save_string}
    pickler.dump(value)
    return file.getvalue().replace(b"cnumpy._core.", b"cnumpy.core.")  # where NumPy kept it then


def by_python_3(value):
    return pickle.dumps(value, protocol=2)


def part(pixels, labels, name):
    """One of the two parts: pixels are (n, 3, 32, 32)."""
    return {
        b"filenames": [f"image_{number}.png".encode() for number in range(len(labels))],
        b"batch_label": name,
        b"fine_labels": list(labels),
        b"coarse_labels": [label // 5 for label in labels],
        b"data": pixels.reshape(len(pixels), 3072),
    }


def packed(contents):
    """A gzipped archive of {name: bytes}."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"cifar-100-python/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def lay_out(folder, contents, archive):
    """Put {name: bytes} where the source looks for them."""
    if archive:
        folder.mkdir(exist_ok=True)
        (folder / "cifar-100-python.tar.gz").write_bytes(packed(contents))
        return folder
    (folder / "cifar-100-python").mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / "cifar-100-python" / name).write_bytes(content)
    return folder


# -- real images -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(shared_data, tmp_path_factory):
    """Real images: in small parquet files, read; and as the contents of the official files, not yet pickled."""
    import pyarrow.parquet

    folder, contents = tmp_path_factory.mktemp("parquet"), {}
    whole = pyarrow.parquet.read_table(shared_data / "cifar100" / "test.parquet")
    for name, start in (("train", 0), ("test", COUNT)):
        table = whole.slice(start, COUNT)
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
def test_the_official_files_hold_the_images_of_the_parquet(real, tmp_path, dump, archive):
    expected, contents = real
    read = opened(lay_out(tmp_path, {name: dump(value) for name, value in contents.items()}, archive))
    for ours, theirs in ((read.train, expected.train), (read.test, expected.test)):
        assert torch.equal(ours.pixels, theirs.pixels)
        assert torch.equal(ours.labels, theirs.labels)
        assert ours.pixels.is_contiguous()
    assert read.classes == expected.classes
    assert (read.classes[8], len(read.classes)) == ("bicycle", 100)
    assert (read.mean, read.std, read.size, read.flip) == (expected.mean, expected.std, 32, True)


# -- a few made-up ones ----------------------------------------------------------------------------


def few(count=4, **changes):
    """{name: bytes} of a small whole data set; `changes` replace values before they are pickled."""
    pixels = (np.arange(count * 3072) // 7 % 256).astype(np.uint8).reshape(count, 3, 32, 32)  # some can be saved
    contents = {name: part(pixels, range(count), name.encode()) for name in ("train", "test")}
    contents["meta"] = {b"fine_label_names": [f"class {number}".encode() for number in range(count)]}
    return {name: by_python_2(value) for name, value in (contents | changes).items()}


@pytest.mark.parametrize("way", ["parquet", "folder", "archive"])
def test_of_several_forms_the_parquet_goes_first_then_the_folder(tmp_path, way):
    lay_out(tmp_path, few(3), archive=True)
    if way != "archive":
        lay_out(tmp_path, few(4), archive=False)
    if way == "parquet":
        for name in ("train", "test"):
            (tmp_path / f"{name}.parquet").write_bytes(b"not even one")
        with pytest.raises(EtagError, match=r"train\.parquet cannot be read"):
            opened(tmp_path)
    else:
        assert len(opened(tmp_path).train) == {"archive": 3, "folder": 4}[way]


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("missing", ["train", "test", "meta"])
def test_a_missing_member_is_named(tmp_path, archive, missing):
    contents = few()
    del contents[missing]
    with pytest.raises(EtagError, match=missing):
        opened(lay_out(tmp_path, contents, archive))


@pytest.mark.parametrize("kept", [0, 0.01, 0.5, 0.8])
def test_a_cut_archive_is_named(tmp_path, kept):
    whole = packed(few())
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(
        EtagError,
        match=r"cifar-100-python.tar.gz (cannot be read as CIFAR-100 \(.+\)|is none of the \d+ classes)\.$",
    ):
        opened(tmp_path)


@pytest.mark.parametrize("place", [0.1, 0.3, 0.5, 0.7])
def test_an_archive_with_a_hole_is_named(tmp_path, place):
    whole = bytearray(packed(few()))
    start = int(place * len(whole))
    whole[start : start + 40] = bytes(40)
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(whole)
    with pytest.raises(
        EtagError,
        match=r"cifar-100-python.tar.gz (cannot be read as CIFAR-100 \(.+\)|is none of the \d+ classes)\.$",
    ):
        opened(tmp_path)


@pytest.mark.parametrize("kept", [0, 1, 0.5, -1])
def test_a_cut_pickle_is_named(tmp_path, kept):
    contents = few()
    whole = contents["train"]
    contents["train"] = whole[: int(kept * len(whole))] if isinstance(kept, float) else whole[:kept]
    with pytest.raises(EtagError, match=r"(cannot be read as CIFAR-100 \(.+\)|is none of the \d+ classes)\.$"):
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
        "names that are none",
    ],
)
def test_other_contents_are_refused(tmp_path, changes):
    with pytest.raises(EtagError, match=r"(cannot be read as CIFAR-100 \(.+\)|is none of the \d+ classes)\.$"):
        opened(lay_out(tmp_path, few(**changes), archive=False))


@pytest.mark.parametrize("label", [4, 100, -1])
def test_a_label_without_a_name_is_refused(tmp_path, label):
    """Not quietly left out, nor counted from the end."""
    changed = {"test": {b"data": PIXELS, b"fine_labels": [0, 1, 2, label]}}
    with pytest.raises(EtagError, match=rf"the label {label} is none of the 4 classes"):
        opened(lay_out(tmp_path, few(**changed), archive=False))


# -- pickles that would run code -------------------------------------------------------------------


class Evil:
    """Runs something when it is unpickled."""

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
    # it does run when it is allowed to
    pickle.loads(pickle.dumps(evil, protocol))
    assert file.exists()
    file.unlink()
    content = pickle.dumps({b"data": evil, b"fine_labels": [0]}, protocol)
    with pytest.raises(EtagError, match=r"it asks for .*, which CIFAR-100 does not need"):
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
def test_names_near_the_admitted_ones_are_refused(tmp_path, name):
    content = b"c" + name.encode() + b"\n."  # a pickle of that name alone
    with pytest.raises(EtagError, match=f"it asks for {name.replace(chr(10), '.')}"):
        opened(lay_out(tmp_path, few() | {"meta": content}, archive=False))


# -- anything at all -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory):
    """spoilt(content) -> a folder with nothing but an archive of these bytes."""
    folder = tmp_path_factory.mktemp("spoilt")

    def write(content):
        (folder / "cifar-100-python.tar.gz").write_bytes(content)
        return folder

    return write


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """A folder for the files of an archive."""
    return tmp_path_factory.mktemp("unpacked")


def read_or_refused(folder):
    try:
        said = f"{len(opened(folder).train)} images"
    except EtagError as error:
        said = str(error)
    refused = "cannot be read as CIFAR-100" in said or "is none of the" in said
    assert refused or said in ("2 images", "4 images")


CHANGES = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=5)


def changed(content, changes):
    content = bytearray(content)
    for place, value in changes:
        content[int(place**2 * len(content))] = value
    return bytes(content)


@settings(max_examples=100)
@given(content=st.binary(max_size=600))
def test_random_bytes_are_no_archive(spoilt, content):
    with pytest.raises(EtagError, match=r"tar\.gz cannot be read as CIFAR-100"):
        opened(spoilt(content))


@settings(max_examples=150)
@given(changes=CHANGES)
def test_a_changed_archive_is_read_or_refused(spoilt, changes):
    read_or_refused(spoilt(changed(packed(few()), changes)))


@settings(max_examples=200)
@given(content=st.binary(max_size=40))
def test_random_bytes_are_no_pickle(unpacked, content):
    with pytest.raises(EtagError, match="cannot be read as CIFAR-100"):
        opened(lay_out(unpacked, few() | {"train": content}, archive=False))


@settings(max_examples=300)
@given(which=st.sampled_from(["train", "test", "meta"]), changes=CHANGES)
def test_a_changed_pickle_is_read_or_refused(unpacked, which, changes):
    contents = few(2)
    contents[which] = changed(contents[which], changes)
    read_or_refused(lay_out(unpacked, contents, archive=False))
