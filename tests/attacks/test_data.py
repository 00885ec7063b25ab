"""Hostile data: pickles, archives, parquet files, folders, servers. Each is refused in one sentence, without harm."""

import gzip
import hashlib
import http.server
import io
import json
import os
import resource
import signal
import socket
import stat
import struct
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.app.conftest import etag, refused, settings
from tests.data.conftest import https_server, noise, png_of, write_classes
from tests.data.sources.test_cifar100 import few, lay_out, packed
from tests.data.sources.test_mnist import NAMES, idx
from tests.data.sources.test_mnist import write as write_mnist

from etag.app.folders import lesson_files, lesson_images
from etag.app.sources import chosen_classes
from etag.core import files
from etag.core.errors import EtagError
from etag.core.images import Resize
from etag.data.decode import UnreadableImage, decode, image_size, inspect
from etag.data.download import Download, fetch, unpack
from etag.data.folders import as_images, image_sizes, list_classes, list_images, write_folders
from etag.data.images import EncodedImages, MemoryImages
from etag.data.scenario import build_scenario
from etag.data.source import SOURCES, DataOptions
from etag.learner.model_directory import ModelDirectory

ZEROS = gzip.compress(bytes(1 << 24), 9)  # 16 MiB in 16 kB; a gzip file may be many of these one after another


def isolated(function, *arguments, seconds=60, mebibytes=1500):
    """Return "done: " and the result of a function, or its error as text. It runs in a process with limits on time and
    memory, because an attack that succeeds must not take the tests with it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (mebibytes << 20),) * 2)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        try:
            result = f"done: {function(*arguments)}"
        except EtagError as error:
            result = f"error: {error}"
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        os.write(writer, result.encode(errors="backslashreplace")[:2000])
        os._exit(0)
    _, status = os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # processes that it has started
    os.close(writer)
    with os.fdopen(reader, errors="replace") as pipe:
        return pipe.read() if status == 0 else f"killed by signal {status}"


def opened(name, folder):
    dataset = SOURCES[name].open(DataOptions(name=name, path=str(folder)))
    for part in (dataset.train, dataset.test):
        if isinstance(part, EncodedImages):
            part.in_memory()
    return dataset


def assert_refused(result, words):
    assert result.startswith("error: "), result
    assert words in result


# -- 1. pickles ------------------------------------------------------------------------------------

RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n("
EMPTY_ARRAY = RECONSTRUCT + b"cnumpy\nndarray\n(K\x00tU\x01btR"
U1 = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
POINTERS = b"A" * 32


def array(shape=b"(K\x01M\x00\x0ct", dtype=U1, fortran=b"\x89", data=b"T\x00\x0c\x00\x00" + bytes(3072)):
    """Opcodes of an array as Python 2 writes one, by default one image."""
    return EMPTY_ARRAY + b"(K\x01" + shape + dtype + fortran + data + b"tb"


def train_file(data, labels=b"]K\x00a"):
    """A training file with these opcodes in place of its array and its labels."""
    return b"\x80\x02}(U\x04data" + data + b"U\x0bfine_labels" + labels + b"u."


def read_pickle(folder, content):
    return isolated(opened, "cifar100", lay_out(folder, few() | {"train": content}, archive=False))


def test_the_pickles_of_these_tests_are_valid_without_the_attack(tmp_path):
    assert read_pickle(tmp_path, train_file(array())).startswith("done")


OBJECT = b"cnumpy\ndtype\n(U\x02O8K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb"
ATTACKS = {
    "pointers through ndarray": b"cnumpy\nndarray\n((K\x04t" + OBJECT + b"U\x20" + POINTERS + b"tR",
    "pointers through the state": array(b"(K\x04t", OBJECT, data=b"U\x20" + POINTERS),
    "objects": array(b"(K\x01t", OBJECT, data=b"]K\x01a"),
    "a dtype with fields": array(dtype=U1[:-1].replace(b"NNN", b"NU\x01x}U\x01x" + U1 + b"K\x00\x86s") + b"b"),
    "an array of a huge shape": b"cnumpy\nndarray\n(J\xff\xff\xff\x7ftR",
    "reconstruct of a huge shape": RECONSTRUCT + b"cnumpy\nndarray\n(J\xff\xff\xff\x3ftU\x01btR",
    "reconstruct of a dtype": RECONSTRUCT + b"cnumpy\ndtype\n(K\x00tU\x01btR",
    "too few bytes": array(data=b"U\x04" + bytes(4)),
    "a negative side": array(b"(J\xff\xff\xff\xffJ\xff\xff\xff\xfft", data=b"U\x01A"),
    "a side that is no number": array(b"(U\x01At", data=b"U\x01A"),
    "columns first": array(fortran=b"\x88"),
    "bytes that are text": array(data=b"X\x00\x0c\x00\x00" + bytes(3072)),
    "floats": array(b"(K\x01M\x80\x01t", U1.replace(b"u1", b"f8")),
    "another codec": b"c_codecs\nencode\n(X\x01\x00\x00\x00AX\x05\x00\x00\x00utf-8tR",
    "attributes of a name": b"cnumpy\ndtype\n(N}U\x04nameU\x01xsu" + b"tb",
    "the state of a list": b"](}U\x01aK\x01stb",
    "an instance of a name": b"cnumpy\nndarray\n)\x81",
    "an old instance": b"(inumpy\nndarray\n",
    "an extension": b"\x82\x01",
    "a persistent id": b"Pos.system\n",
    "a huge place in the memo": b"]r\xff\xff\xff\x1f",
    "a text longer than the file": b"X\xff\xff\xff\xff",
    "bytes longer than the file": b"\x8e\xff\xff\xff\xff\xff\xff\xff\x3f",
    "nothing on the stack": b"00000",
    "a number of many digits": b"L" + b"9" * 1_000_000 + b"L\n",
    "very many lists in each other": b"]" * 100_000 + b"a" * 99_999,
    "no array": b"]",
    "text": b"U\x03abc",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_pickle_is_refused(tmp_path, attack):
    result = read_pickle(tmp_path, train_file(ATTACKS[attack]))
    assert_refused(result, "cannot be read as CIFAR-100")
    assert "MemoryError" not in result


def test_lists_that_double_at_each_level_are_refused(tmp_path):
    """As labels they would be 2^40 numbers."""
    levels = b"".join(b"]q%c(h%ch%ce" % (level, level - 1, level - 1) for level in range(1, 41))
    result = read_pickle(tmp_path, train_file(array(), b"]q\x00K\x00a" + levels))
    assert_refused(result, "cannot be read as CIFAR-100")


def test_keys_that_all_collide_are_refused(tmp_path):
    """Numbers of equal hash make a dict quadratic."""
    keys = (number * (2**61 - 1) for number in range(1, 60_000))
    pairs = b"".join(b"\x8a\x0c" + key.to_bytes(12, "little") + b"N" for key in keys)
    result = isolated(opened, "cifar100", lay_out(tmp_path, few() | {"train": b"\x80\x02}(" + pairs + b"u."}, False))
    assert_refused(result, "cannot be read as CIFAR-100")


@pytest.mark.parametrize("labels", [[0.5, 1, 2, 3], [True, False, True, True], [[0], [1], [2], [3]], {}, None])
def test_labels_that_are_no_whole_numbers_are_refused(tmp_path, labels):
    train = {b"data": np.zeros((4, 3072), np.uint8), b"fine_labels": labels}
    with pytest.raises(EtagError, match="cannot be read as CIFAR-100"):
        opened("cifar100", lay_out(tmp_path, few(train=train), archive=False))


def test_a_pickle_with_more_than_its_share_of_opcodes_is_refused(tmp_path):
    result = read_pickle(tmp_path, train_file(b"Nq\x00" * 250_001 + array()))
    assert_refused(result, "cannot be read as CIFAR-100")


# -- 2. class names as file names ------------------------------------------------------------------

NAMES_TO_ESCAPE = [
    "../../outside",
    "..",
    ".",
    "",
    ".hidden",
    "a/b",
    "a\\b",
    "C:drive",
    "CON",
    "nul.txt",
    "com1 .x",
    "tail.",
    "tail ",
    "tail",
    "x" * 400,
    "x" * 401,
    "é" * 200,
    "\x1b[31mred",
    "line\nbreak",
    "\u202eoverride",
    "\ud800",
    "caf\udce9",
    "null\0byte",
    "-rf",
    "ordinary",
]


def write_parquet(folder, images, labels, names=None, features=None):
    """Both parquet files with these images (bytes or None) and labels (any array)."""
    folder.mkdir(parents=True, exist_ok=True)
    column = pa.array([{"bytes": image} for image in images], pa.struct({"bytes": pa.binary()}))
    table = pa.table({"img": column, "fine_label": labels})
    if names is not None:
        features = {"info": {"features": {"fine_label": {"names": names}}}}
    if features is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    for part in ("train", "test"):
        pyarrow.parquet.write_table(table, folder / f"{part}.parquet")
    return folder


def encoded(seed=0, kind="PNG", side=32, **options):
    file = io.BytesIO()
    Image.fromarray(noise(seed, side, side)).save(file, kind, **options)
    return file.getvalue()


def test_class_names_cannot_leave_the_folder(tmp_path, monkeypatch):
    names = [*NAMES_TO_ESCAPE, str(tmp_path / "absolute")]
    images = [encoded(number) for number in range(len(names))]
    write_parquet(tmp_path / "data" / "cifar100", images, list(range(len(names))), names)
    monkeypatch.setenv("ETAG_DATA", str(tmp_path / "data"))
    out = tmp_path / "a" / "b" / "out"
    done = etag("data", "folders", "cifar100", out)
    assert done.returncode == 0, done.stderr
    written = sorted(path for path in tmp_path.rglob("*.png"))
    assert len(written) == len(names)  # each in a folder of its own
    assert {path.parent.parent for path in written} == {out}
    assert not any(path.parent.name.startswith(".") for path in written)
    assert np.array_equal(np.asarray(Image.open(out / "ordinary" / "00000.png")), noise(24, 32, 32))


@pytest.mark.parametrize(
    "names", ["ab", [0, 1], [None, "b"], [["a"], "b"], {"a": 0, "b": 1}, ["a", "a"], 7, [b"a".hex()]]
)
def test_class_names_that_are_no_texts_or_not_distinct_are_refused(tmp_path, names):
    write_parquet(tmp_path, [encoded(0), encoded(1)], [0, 1], names)
    with pytest.raises(EtagError, match=r"cannot be read as CIFAR-100|is none of the 1 classes"):
        opened("cifar100", tmp_path)


@pytest.mark.parametrize("names", [[b"a", b"a"], [b"\xff", b"b"], b"ab", [7, 8]])
def test_class_names_of_the_official_files_are_checked_too(tmp_path, names):
    with pytest.raises(EtagError, match="cannot be read as CIFAR-100"):
        opened("cifar100", lay_out(tmp_path, few(meta={b"fine_label_names": names}), archive=False))


@pytest.mark.parametrize("features", [[], "text", {"info": 7}, {"info": {"features": [1]}}, None])
def test_metadata_of_another_form_is_refused_or_ignored(tmp_path, features):
    write_parquet(tmp_path, [encoded(0), encoded(1)], [0, 1], features=features)
    result = isolated(lambda: opened("cifar100", tmp_path).classes)
    assert result == "done: ('0', '1')" or "error: " in result


def assert_safe(name):
    assert name
    assert len(name.encode()) <= 200
    assert not set(name) & set('/\\:<>"|?*')
    assert name.isprintable()
    assert name[0] != "."
    assert name[-1] not in ". "
    assert name.split(".")[0].strip().lower() not in ("con", "prn", "aux", "nul", "com1", "lpt9", "com²", "conin$")


@pytest.mark.parametrize("name", [*NAMES_TO_ESCAPE, "con", "PRN.tar.gz", "aux ", "COM²", "conin$", "lpt9.a"])
def test_a_safe_file_name_is_one_on_every_system(name):
    assert_safe(files.safe_file_name(name))


@pytest.mark.parametrize(
    "name", ["cat", "naïve 猫", "a'b", "-dash", "x" * 200, "semi;colon,comma", "v1.2", "~home", "console"]
)
def test_an_ordinary_name_is_its_own_file_name(name):
    assert files.safe_file_name(name) == name


@given(st.text(), st.text())
def test_different_names_never_share_a_file_name(one, other):
    names = {one, other}
    names |= {files.safe_file_name(name) for name in names}  # not even with the name that was made of another
    assert len({files.safe_file_name(name) for name in names}) == len(names)
    for name in names:
        assert_safe(files.safe_file_name(name))


# -- 3. images in parquet files --------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["TIFF", "PPM", "ICO", "PCX", "TGA", "EPS"])
def test_a_parquet_file_reaches_no_other_decoder_than_a_folder_does(tmp_path, kind):
    write_parquet(tmp_path, [encoded(kind=kind)], [0])
    with pytest.raises(EtagError, match=r"train.parquet cannot be read as CIFAR-100 \(image 0 .*not an image"):
        opened("cifar100", tmp_path)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (None, "image 1 .*missing"),
        (b"", "image 1 .*not an image"),
        (encoded(side=31), "image 1 .*31x31 pixels, not 32x32"),
        (encoded(side=64), "image 1 .*64x64 pixels, not 32x32"),
        (encoded(side=64, kind="JPEG"), "image 1 .*64x64 pixels, not 32x32"),
        (png_of(9000, 9000), "image 1 .*9000x9000 pixels, not 32x32"),
        (png_of(20_000, 20_000), "image 1 .*far too large"),
        (png_of(32, 2**31 - 1), "image 1 .*far too large"),
        (png_of(32, 32), "image 1 .*damaged"),
    ],
    ids=["null", "empty", "small", "large", "large JPEG", "large header", "bomb", "long bomb", "no pixels"],
)
def test_a_hostile_image_in_a_parquet_file_is_refused(tmp_path, image, words):
    write_parquet(tmp_path, [encoded(), image], [0, 1])
    with pytest.raises(EtagError, match=rf"train.parquet cannot be read as CIFAR-100 \({words}"):
        opened("cifar100", tmp_path)


def test_a_large_header_is_refused_before_its_pixels_are_decoded(tmp_path):
    write_parquet(tmp_path, [png_of(6000, 6000, rows=bytes(6000 * 18_001))], [0])
    assert_refused(isolated(opened, "cifar100", tmp_path, mebibytes=90), "6000x6000 pixels")


@pytest.mark.parametrize(
    "labels",
    [
        pa.array([0, None]),
        pa.array([0.0, 1.5]),
        pa.array([0.0, float("nan")]),
        pa.array(["0", "1"]),
        pa.array([[0], [1]]),
        pa.array([True, False]),
        pa.nulls(2),
        pa.array([0, 2**63 + 1], pa.uint64()),
        pa.array([0, -1]),
        pa.array([0, 100]),
        pa.array([0, 2**40]),
    ],
    ids=str,
)
def test_labels_of_another_kind_are_refused(tmp_path, labels):
    write_parquet(tmp_path, [encoded(0), encoded(1)], labels)
    result = isolated(opened, "cifar100", tmp_path)
    assert_refused(result, "classes" if "is none of the " in result else "cannot be read as CIFAR-100")


def test_a_small_parquet_file_of_many_large_images_is_refused(tmp_path):
    """A dictionary holds the same 10 MB once for 40,000 rows."""
    image = pa.DictionaryArray.from_arrays(pa.array([0] * 40_000, pa.int32()), pa.array([encoded() + bytes(10**7)]))
    column = pa.StructArray.from_arrays([image], names=["bytes"])
    for part in ("train", "test"):
        table = pa.table({"img": column, "fine_label": [0] * 40_000})
        pyarrow.parquet.write_table(table, tmp_path / f"{part}.parquet", compression="zstd")
    assert (tmp_path / "train.parquet").stat().st_size < 10**5
    result = isolated(opened, "cifar100", tmp_path, mebibytes=1000)
    assert result.startswith(("done", "error: ")), result
    assert "MemoryError" not in result


def test_more_rows_than_any_data_set_has_are_refused(tmp_path):
    rows = 300_000
    image = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array([encoded()]))
    column = pa.StructArray.from_arrays([image], names=["bytes"])
    labels = pa.array(np.zeros(rows, np.int8))
    for part in ("train", "test"):
        pyarrow.parquet.write_table(pa.table({"img": column, "fine_label": labels}), tmp_path / f"{part}.parquet")
    assert_refused(isolated(opened, "cifar100", tmp_path), "cannot be read as CIFAR-100 (it holds 300,000 rows")


# -- 4. what is not a file, and names that are not UTF-8 -------------------------------------------


def make_fifo(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))  # the name of a socket may have 107 bytes only


def make_device_link(path):
    path.symlink_to("/dev/zero")


KINDS = {"fifo": make_fifo, "socket": make_socket, "device": make_device_link, "folder": Path.mkdir}


@pytest.fixture(params=KINDS)
def special(request, tmp_path):
    """A folder of two classes in which one "image" is not a file."""
    write_classes(tmp_path, "cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png")
    KINDS[request.param](tmp_path / "cat" / "3.png")
    return tmp_path


def error_of(function, *arguments):
    """Run a function that must raise UnreadableImage; its reason becomes an EtagError."""
    try:
        function(*arguments)
    except UnreadableImage as reason:
        raise EtagError(f"({reason})") from reason


def test_what_is_not_a_file_is_never_opened(special):
    path = str(special / "cat" / "3.png")
    for function in (lambda: decode(path, Resize(8)), lambda: image_size(path), lambda: inspect(path)):
        assert_refused(isolated(error_of, function, seconds=30), "(not a regular file)")
    assert_refused(isolated(image_sizes, [path], seconds=30), "3.png (not a regular file)")


@pytest.mark.parametrize(("ending", "options"), [("tif", {"compression": "group4"}), ("gif", {}), ("png", {})])
def test_small_files_of_vast_images_are_refused(tmp_path, ending, options):
    Image.new("1", (20_000, 20_000)).save(tmp_path / f"a.{ending}", **options)
    assert (tmp_path / f"a.{ending}").stat().st_size < 10**6
    for function in (lambda path: decode(path, Resize(8)), inspect):
        result = isolated(error_of, function, tmp_path / f"a.{ending}", mebibytes=300)
        assert_refused(result, "far too large")


def test_names_in_a_csv_file_are_printed_safely(tmp_path):
    write_classes(tmp_path, "1.png", "2.png")
    (tmp_path / "labels.csv").write_text("path,label\n1.png,\x1b[2Jcat\n2.png,dog\nno\x1b[31m.png,dog\n")
    sentence = refused(etag("check", tmp_path, "--labels", tmp_path / "labels.csv"))
    assert "no\\x1b[31m.png (line 4)" in sentence
    (tmp_path / "labels.csv").write_text("path,label\n1.png,\x1b[2Jcat\n2.png,dog\n")
    done = etag("check", tmp_path, "--labels", tmp_path / "labels.csv")
    assert "\\x1b[2Jcat" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_folder_with_something_that_is_not_a_file_is_read_without_waiting(special):
    images = as_images(list_classes(special), workers=0).resized(Resize(8))
    result = isolated(images.in_memory, seconds=30)
    if (special / "cat" / "3.png").is_dir():  # which is searched for images, as all folders are
        assert result.startswith("done"), result
    else:
        assert_refused(result, "1 image file cannot be read:")
        assert "3.png (not a regular file)" in result


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that has hardly been trained."""
    home = tmp_path_factory.mktemp("model")
    done = etag("data", "folders", "digits", home / "images", "--classes", "0-1", "--per-class", 6)
    assert done.returncode == 0, done.stderr
    done = etag("learn", home / "model", home / "images", *settings("train.steps=2", "train.base={steps: 2}"))
    assert done.returncode == 0, done.stderr
    return home / "model"


def test_predict_refuses_what_is_not_a_file(tmp_path, model):
    write_classes(tmp_path, "1.png")
    os.mkfifo(tmp_path / "2.png")
    for given_paths in ([tmp_path], [tmp_path / "1.png", tmp_path / "2.png"]):
        result = isolated(etag, "predict", model, *given_paths)
        assert "returncode=1" in result, result
        assert "1.png" in result
        assert "2.png cannot be read: not a regular file" in result


@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
@pytest.mark.parametrize(
    ("source", "file"),
    [
        ("cifar100", "train.parquet"),
        ("cifar100", "cifar-100-python.tar.gz"),
        ("cifar100", "cifar-100-python/train"),
        ("cifar100", "cifar-100-python/meta"),
        ("mnist", NAMES[0]),
        ("mnist", f"{NAMES[1]}.gz"),
        ("tiny-imagenet", "val/val_annotations.txt"),
    ],
)
def test_the_files_of_a_source_are_never_opened_unless_they_are_files(tmp_path, source, file, kind):
    if source == "mnist":
        write_mnist(tmp_path, zipped=file.endswith(".gz"))
    elif source == "tiny-imagenet":
        write_classes(tmp_path, "train/a/1.png", "train/b/1.png", "val/images/1.png")
    elif "parquet" in file:
        write_parquet(tmp_path, [encoded()], [0])
    else:
        lay_out(tmp_path, few(), archive="tar" in file)
    (tmp_path / file).unlink(missing_ok=True)
    KINDS[kind](tmp_path / file)
    result = isolated(opened, source, tmp_path, seconds=30)
    assert_refused(result, "regular file")


def test_a_class_order_is_never_opened_unless_it_is_a_file(tmp_path):
    os.mkfifo(tmp_path / "order.txt")
    options = DataOptions(name="digits", order=str(tmp_path / "order.txt"))
    assert_refused(isolated(build_scenario, options, "b2-1x2", 0, seconds=30), "not a regular file")


def test_a_regular_file_may_be_a_link(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "nowhere").symlink_to("missing")
    files.require_regular_file(tmp_path / "link")
    with pytest.raises(FileNotFoundError):
        files.require_regular_file(tmp_path / "nowhere")
    with pytest.raises(OSError, match="not a regular file"):
        files.require_regular_file(tmp_path)


@pytest.fixture
def not_utf_8(tmp_path):
    """Two classes with file and folder names that are not UTF-8."""
    for folder in (b"caf\xe9", b"dog"):
        home = os.path.join(os.fsencode(tmp_path), folder)
        os.mkdir(home)
        for number in range(3):
            with open(os.path.join(home, b"b\xff%d.png" % number), "wb") as file:
                file.write(encoded(number, side=8))
    return tmp_path


@pytest.mark.parametrize("workers", [0, 1])
def test_names_that_are_not_utf_8_are_listed_and_decoded(not_utf_8, workers):
    listing = list_classes(not_utf_8)
    assert list(listing) == ["caf\udce9", "dog"]
    assert image_sizes([file for files in listing.values() for file in files]) == [(8, 8)] * 6
    pixels = as_images(listing, workers).resized(Resize(8)).in_memory().pixels
    assert np.array_equal(pixels[1].numpy(), noise(1, 8, 8).transpose(2, 0, 1))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_file_with_such_a_name_is_an_error(not_utf_8, workers):
    (not_utf_8 / "dog" / "b\udcff1.png").write_bytes(b"damaged")
    with pytest.raises(EtagError, match=r"1.png \(not an image\)"):
        as_images(list_classes(not_utf_8), workers).resized(Resize(8)).in_memory()


def test_a_lesson_of_such_names_has_a_fingerprint(not_utf_8, model):
    about = ModelDirectory(model).about()
    listing = lesson_files(not_utf_8, known=())
    assert len(lesson_images(listing, about, memory=10, workers=0).fingerprint) == 32


def test_a_folder_below_that_cannot_be_read_is_an_error(tmp_path):
    """Its images would be missing silently. As root no permission is lacking, so the path is too long."""
    write_classes(tmp_path, "cat/1.png", "dog/1.png")
    (tmp_path / "dog" / "deep").mkdir()
    handle = os.open(tmp_path / "dog" / "deep", os.O_RDONLY)
    for _ in range(20):
        os.mkdir("n" * 250, dir_fd=handle)
        inner = os.open("n" * 250, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    with pytest.raises(EtagError, match=r"cannot be read: File name too long"):
        list_images(tmp_path / "dog")


# -- 5. bombs --------------------------------------------------------------------------------------


def test_a_gzip_bomb_is_not_unpacked(tmp_path):
    write_mnist(tmp_path)
    file = tmp_path / f"{NAMES[0]}.gz"
    file.write_bytes(file.read_bytes() + 300 * ZEROS)  # 5 GB
    assert_refused(isolated(opened, "mnist", tmp_path, mebibytes=500), f"{NAMES[0]}.gz")


@pytest.mark.parametrize(
    "shape", [(2**32 - 1, 2**32 - 1, 2**32 - 1), (2**31, 28, 28), (6, 2**20, 2**20), (10**7, 28, 28)]
)
def test_a_gzip_bomb_whose_header_announces_it_is_not_unpacked(tmp_path, shape):
    write_mnist(tmp_path)
    header = gzip.compress(struct.pack(">4I", 0x0803, *shape))
    (tmp_path / f"{NAMES[0]}.gz").write_bytes(header + 500 * ZEROS)  # 8 GB
    assert_refused(isolated(opened, "mnist", tmp_path, mebibytes=500), f"{NAMES[0]}.gz")


@pytest.mark.parametrize("shape", [(6, 27, 28), (6, 1, 784), (6, 0, 28)])
def test_digits_of_another_size_are_refused(tmp_path, shape):
    write_mnist(tmp_path, zipped=False)
    (tmp_path / NAMES[0]).write_bytes(idx(np.zeros(shape, np.uint8)))
    with pytest.raises(EtagError, match=NAMES[0]):
        SOURCES["permuted-mnist"].open(DataOptions(name="permuted-mnist", path=str(tmp_path)))


def tar_of(*headers):
    """A gzipped tar file of these headers, each followed by 8 GB of zeros."""
    return b"".join(gzip.compress(header) + 500 * ZEROS for header in headers)


def header_of(name, size, kind=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    ("name", "size", "kind"),
    [
        ("cifar-100-python/train", 500 << 24, tarfile.REGTYPE),
        ("cifar-100-python/train", 500 << 24, tarfile.XHDTYPE),
        ("cifar-100-python/train", 500 << 24, tarfile.GNUTYPE_SPARSE),
    ],
    ids=["member", "pax header", "sparse"],
)
def test_a_tar_bomb_is_not_unpacked(tmp_path, name, size, kind):
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(tar_of(header_of(name, size, kind)))
    result = isolated(opened, "cifar100", tmp_path, mebibytes=1200)
    assert_refused(result, "cannot be read as CIFAR-100")
    assert "MemoryError" not in result


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_a_member_that_is_not_a_file_is_missing(tmp_path, kind):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name in ("train", "test", "meta"):
            info = tarfile.TarInfo(f"cifar-100-python/{name}")
            info.type, info.linkname = kind, "/etc/hostname" if name == "train" else f"cifar-100-python/{name}"
            archive.addfile(info)
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(file.getvalue())
    assert_refused(isolated(opened, "cifar100", tmp_path), "train is missing")


def test_an_archive_of_very_many_members_is_refused(tmp_path):
    one = header_of("other", 0)
    content = gzip.compress(one * 100_000, 1) + packed(few())
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(content)
    assert_refused(isolated(opened, "cifar100", tmp_path, seconds=30), "train is missing")


def test_a_huge_pickle_in_a_folder_is_refused(tmp_path):
    lay_out(tmp_path, few(), archive=False)
    os.truncate(tmp_path / "cifar-100-python" / "train", 1 << 34)
    assert_refused(isolated(opened, "cifar100", tmp_path), "cannot be read as CIFAR-100 (train is larger than")


def zip_file(path, entries, **sizes):
    """Write a zip of {name: content}; `sizes` are lies about the sizes in its directory, by name."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
        for info in archive.infolist():
            info.file_size = sizes.get(Path(info.filename).name, info.file_size)
    return path


def contents(folder):
    """Every path below a folder with its content."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def test_a_zip_that_announces_too_much_is_refused_before_anything_is_written(tmp_path):
    archive = zip_file(tmp_path / "a.zip", {"top/first": b"x", "top/second": b"x"}, first=3 << 30)
    before = contents(tmp_path)
    assert_refused(isolated(unpack, archive, tmp_path), "cannot be unpacked: it holds more than")
    assert contents(tmp_path) == before


def test_a_zip_that_holds_more_than_it_announces_is_cut_off(tmp_path):
    archive = zip_file(tmp_path / "a.zip", {"top/bomb": bytes(1 << 26)}, bomb=10)
    assert_refused(isolated(unpack, archive, tmp_path, mebibytes=50), "cannot be unpacked")
    assert list(contents(tmp_path)) == ["a.zip"]


def test_a_zip_of_very_many_entries_is_refused(tmp_path):
    zip_file(tmp_path / "a.zip", {"top/file": b"x"})
    content = (tmp_path / "a.zip").read_bytes()
    start, end = content.index(b"PK\x01\x02"), content.index(b"PK\x05\x06")
    directory = content[start:end] * 150_001
    tail = content[end : end + 12] + struct.pack("<I", len(directory)) + content[end + 16 :]
    (tmp_path / "a.zip").write_bytes(content[:start] + directory + tail)
    assert_refused(isolated(unpack, tmp_path / "a.zip", tmp_path), "cannot be unpacked: it has more than")


def test_unpacking_never_changes_what_the_user_had(tmp_path):
    (tmp_path / "train" / "cat").mkdir(parents=True)
    (tmp_path / "train" / "cat" / "mine.png").write_bytes(b"my image")
    (tmp_path / ".unpacking").mkdir()
    (tmp_path / ".unpacking" / "mine").write_bytes(b"my notes")
    (tmp_path / "words.txt").write_bytes(b"my words")
    archive = zip_file(tmp_path / "a.zip", {"top/train/cat/1.png": b"image", "top/words.txt": b"words"})
    before = contents(tmp_path)
    with pytest.raises(EtagError, match=r"words.txt.* exists already"):
        unpack(archive, tmp_path)
    assert contents(tmp_path) == before
    (tmp_path / "words.txt").unlink()
    unpack(archive, tmp_path)
    after = contents(tmp_path)
    assert after.items() >= {path: content for path, content in before.items() if path != "words.txt"}.items()
    assert after["words.txt"] == b"words"
    assert after["train/cat/1.png"] == b"image"


@pytest.mark.parametrize("taken", ["file for a folder", "folder for a file", "link", "fifo"])
def test_what_stands_in_the_way_stays(tmp_path, taken):
    archive = zip_file(tmp_path / "a.zip", {"top/train/1.png": b"image", "top/words": b"words"})
    if taken == "file for a folder":
        (tmp_path / "train").write_bytes(b"mine")
    elif taken == "folder for a file":
        (tmp_path / "words").mkdir()
    elif taken == "link":
        (tmp_path / "words").symlink_to("nowhere")
    else:
        os.mkfifo(tmp_path / "words")
    before = {path: path.lstat() for path in tmp_path.iterdir()}
    assert_refused(isolated(unpack, archive, tmp_path, seconds=30), "cannot be unpacked")
    assert {path: path.lstat().st_ino for path in before} == {path: known.st_ino for path, known in before.items()}


@pytest.mark.parametrize(
    "names",
    [[], ["file"], ["one/a", "two/b"], ["one/a", "file"], ["../one/a", "two/b"]],
    ids=["nothing", "a file", "two folders", "a folder and a file", "a folder above"],
)
def test_a_zip_without_exactly_one_top_folder_is_refused(tmp_path, names):
    (tmp_path / "inner").mkdir()
    archive = zip_file(tmp_path / "inner" / "a.zip", dict.fromkeys(names, b"x"))
    with pytest.raises(EtagError, match=r"a.zip cannot be unpacked: it should hold one folder"):
        unpack(archive, tmp_path / "inner")
    assert list(contents(tmp_path)) == ["inner", "inner/a.zip"]


def test_entries_of_a_zip_stay_inside_the_folder(tmp_path):
    names = ["../../above", "/absolute", "C:\\drive", "top/../../above", "top/x/../../../above"]
    archive = tmp_path / "in" / "a.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as file:
        for name in names:
            file.writestr(f"top/{name}", "x")
        link = zipfile.ZipInfo("top/link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(link, "/etc")
        file.writestr("top/link/passwd", "x")
    with pytest.raises(EtagError, match="cannot be unpacked"):
        unpack(archive, archive.parent)  # the link is written as a file, so nothing can be below it
    assert list(contents(tmp_path)) == ["in", "in/a.zip"]
    archive.unlink()
    zip_file(archive, {f"top/{name}": b"x" for name in names})
    unpack(archive, archive.parent)
    assert all(path == "in" or path.startswith("in/") for path in contents(tmp_path))
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("flag", ["encrypted", "unknown compression", "damaged"])
def test_a_zip_that_cannot_be_read_is_refused(tmp_path, flag):
    archive = zip_file(tmp_path / "a.zip", {"top/file": b"content" * 100})
    content = bytearray(archive.read_bytes())
    entry = content.index(b"PK\x01\x02")
    if flag == "encrypted":
        content[entry + 8] |= 1
        content[6] |= 1
    elif flag == "unknown compression":
        content[entry + 10] = content[8] = 99
    else:
        content[40:50] = b"\xff" * 10
    archive.write_bytes(content)
    with pytest.raises(EtagError, match="cannot be unpacked"):
        unpack(archive, tmp_path)


# -- 6. servers ------------------------------------------------------------------------------------

CONTENT = bytes(range(256)) * 1024


class Hostile(http.server.BaseHTTPRequestHandler):
    """Each path is an attack."""

    def do_GET(self):
        self.server.requests.append(self.path)
        redirects = {
            "/to-http": f"http://127.0.0.1:{self.server.server_port}/file",
            "/to-file": "file:///etc/hostname",
            "/to-brackets": "https://[::1/x",
            "/to-port": "https://127.0.0.1:port/x",
            "/to-long": f"https://{'a' * 70}.example/x",
            "/to-itself": "/to-itself",
        }
        if self.path in redirects:
            self.send_response(302)
            self.send_header("Location", redirects[self.path])
            self.end_headers()
        elif self.path == "/no-status":
            self.wfile.write(b"garbage\r\n\r\n")
        else:
            lengths = {"/text": "abc", "/negative": "-5", "/huge": str(10**30), "/short": "10"}
            lengths |= dict.fromkeys(["/endless", "/chunked"])
            self.send_response(200)
            if length := lengths.get(self.path, str(len(CONTENT))):
                self.send_header("Content-Length", length)
            if self.path == "/chunked":
                self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                self.wfile.write(b"zz\r\n" if self.path == "/chunked" else CONTENT)
                while self.path in ("/endless", "/huge", "/more"):
                    self.wfile.write(CONTENT)
            except OSError:  # the client has closed the connection
                pass

    def log_message(self, *_): ...


@pytest.fixture
def hostile(tmp_path_factory, monkeypatch):
    """The address of a hostile HTTPS server, and the server."""
    with https_server(Hostile, tmp_path_factory.mktemp("server"), monkeypatch) as running:
        yield running


def wanted(address):
    return Download(address, hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


def get(address, folder):
    return fetch(wanted(address), folder, lambda *_: None)


def test_the_servers_of_these_tests_answer_without_the_attack(hostile, tmp_path):
    assert get(f"{hostile[0]}/file", tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("address", ["http://127.0.0.1/file", "ftp://127.0.0.1/file", "file:///etc/hostname", "file"])
def test_an_address_without_https_is_refused(address):
    with pytest.raises(EtagError, match=r"https"):
        wanted(address)


def test_every_source_is_downloaded_by_https_and_verified_by_sha_256():
    downloads = [download for name in SOURCES for download in SOURCES[name].downloads]
    assert len(downloads) >= 6
    assert all(download.url.startswith("https://") for download in downloads)
    assert all(len(download.sha256) == 64 and download.size > 4000 for download in downloads)


def test_a_redirection_to_http_is_refused(hostile, tmp_path):
    address, server = hostile
    with pytest.raises(EtagError, match=r"https"):
        get(f"{address}/to-http", tmp_path)
    assert server.requests == ["/to-http"]


@pytest.mark.parametrize("path", ["to-file", "to-brackets", "to-port", "to-long", "to-itself", "no-status", "chunked"])
def test_a_server_that_answers_nonsense_is_an_error(hostile, tmp_path, path):
    with pytest.raises(EtagError, match="could not be downloaded"):
        get(f"{hostile[0]}/{path}", tmp_path)


@pytest.mark.parametrize("path", ["text", "negative", "endless", "huge", "more"])
def test_a_wrong_length_does_no_harm(hostile, tmp_path, path):
    """What is read is the size that is known in advance, whatever the server announces or sends."""
    assert get(f"{hostile[0]}/{path}", tmp_path).read_bytes() == CONTENT
    assert [file.stat().st_size for file in tmp_path.iterdir()] == [len(CONTENT)]


def test_a_download_that_ends_too_early_is_an_error(hostile, tmp_path):
    with pytest.raises(EtagError, match="the connection broke after 10 of"):
        get(f"{hostile[0]}/short", tmp_path)


def test_an_endless_file_of_other_content_is_an_error(hostile, tmp_path):
    with pytest.raises(EtagError, match="arrived damaged"):
        fetch(Download(f"{hostile[0]}/endless", "0" * 64, 10_000_000), tmp_path, lambda *_: None)
    assert list(tmp_path.iterdir()) == []


def test_a_certificate_that_nobody_trusts_is_an_error(hostile, tmp_path, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(EtagError, match=r"could not be downloaded: .*certificate"):
        get(f"{hostile[0]}/file", tmp_path)


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
def test_a_part_that_is_not_a_file_is_an_error(hostile, tmp_path, kind):
    KINDS[kind](tmp_path / "file.part")
    assert_refused(isolated(get, f"{hostile[0]}/file", tmp_path, seconds=30), "could not be downloaded")


# -- 7. writing folders ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "out",
    ["/proc/nowhere/out", "file/out", "n" * 300, "/".join(["n" * 200] * 25), "fifo"],
    ids=["read-only", "below a file", "a long name", "a long path", "a fifo"],
)
def test_folders_that_cannot_be_written_are_one_sentence(tmp_path, out):
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "fifo")
    refused(etag("data", "folders", "digits", tmp_path / out))


def test_a_disk_that_is_full_is_one_sentence(tmp_path):
    def write():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
        write_folders(
            MemoryImages(torch.from_numpy(noise(0, 64, 64)).permute(2, 0, 1)[None], torch.tensor([0])),
            {0: "a"},
            tmp_path / "out",
        )

    assert_refused(isolated(write), "cannot be written")


def test_two_classes_of_one_name_never_share_a_folder(tmp_path):
    images = MemoryImages(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1]))
    with pytest.raises(EtagError, match="cannot be written"):
        write_folders(images, {0: "same", 1: "same"}, tmp_path / "out")


# -- 8. numbers, paths and lists that a user or a file gives ---------------------------------------


@pytest.mark.parametrize("text", ["²", "9" * 5000, "0-" + "9" * 5000, "0-999999999999999999999999", "٣-²"])
def test_numbers_of_classes_that_are_no_numbers(text):
    with pytest.raises(EtagError, match="class"):
        chosen_classes(text, ["a", "b"])


@pytest.mark.parametrize("path", ["~nobody-of-this-name/x", "n" * 300, "/".join(["n" * 200] * 25), "null\0byte"])
@pytest.mark.parametrize("source", ["cifar100", "folder", "imagenet-sub", "tiny-imagenet"])
def test_a_folder_that_cannot_exist_is_an_error(path, source):
    with pytest.raises(EtagError):
        opened(source, path)


@pytest.mark.parametrize("order", ["~nobody-of-this-name/x", "n" * 300, "null\0byte"])
def test_an_order_that_cannot_exist_is_an_error(order):
    with pytest.raises(EtagError, match="cannot be read"):
        build_scenario(DataOptions(name="digits", order=order), "b2-1x2", 0)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, f"[{'9' * 5000}]", "[[0], [1]]", "[NaN]", '["\\ud800"]', "{}", "", "0 0"]
)
def test_a_hostile_order_is_an_error(tmp_path, text):
    (tmp_path / "order").write_text(text)
    with pytest.raises(EtagError, match="the class order "):
        build_scenario(DataOptions(name="digits", order=str(tmp_path / "order")), "b2-1x2", 0)


@pytest.mark.parametrize("name", ["../../secret.png", "/etc/secret.png", "..", "", "a/b.png", "null\0byte.png"])
def test_annotations_cannot_lead_out_of_their_folder(tmp_path, name):
    write_classes(tmp_path, "train/a/1.png", "train/b/1.png", "val/images/1.png", "secret.png")
    (tmp_path / "val" / "val_annotations.txt").write_text(f"1.png\ta\t0\n{name}\tb\t0\n")
    with pytest.raises(EtagError, match=r"val_annotations.txt, line 2"):
        opened("tiny-imagenet", tmp_path)
