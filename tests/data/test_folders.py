import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etag.core.errors import EtagError
from etag.core.images import Resize
from etag.data.folders import as_images, common_size, hold_out_files, list_classes, list_images
from etag.data.not_read import NotRead
from etag.data.sources.folder import parts

# -- listing classes -------------------------------------------------------------------------------


def names(root, listing):
    """Return the listing with paths relative to the root."""
    return {name: [os.path.relpath(file, root) for file in files] for name, files in listing.items()}


def test_classes_and_files_are_sorted_by_name(tmp_path, classes_in):
    classes_in(tmp_path, "dog/2.png", "cat/b.png", "dog/10.png", "cat/a.png", "Emu/a.png")
    assert names(tmp_path, list_classes(tmp_path)) == {
        "Emu": ["Emu/a.png"],
        "cat": ["cat/a.png", "cat/b.png"],
        "dog": ["dog/10.png", "dog/2.png"],
    }
    assert list(list_classes(tmp_path)) == ["Emu", "cat", "dog"]


def test_nested_folders_belong_to_their_class(tmp_path, classes_in):
    classes_in(tmp_path, "cat/z.png", "cat/2020/b.png", "cat/2020/x/a.png", "cat/2019/c.png", "dog/images/1.png")
    assert names(tmp_path, list_classes(tmp_path)) == {
        "cat": ["cat/z.png", "cat/2019/c.png", "cat/2020/b.png", "cat/2020/x/a.png"],
        "dog": ["dog/images/1.png"],
    }


def test_image_endings_are_recognized_in_upper_and_lower_case(tmp_path, picture):
    images = ["a.BMP", "b.JPEG", "c.JPG", "d.Png", "e.WEBP", "f.bmp", "g.jpeg", "h.jpg", "i.png", "j.webp"]
    images += ["k.gif", "l.TIFF", "m.tif"]
    for name in images:
        picture(tmp_path / name)
    for name in ("boxes.txt", "png", "k.png.part", "Thumbs.db", "l.mp4", "m.json"):
        (tmp_path / name).write_bytes(b"")
    assert [os.path.basename(file) for file in list_images(tmp_path)] == images


def test_hidden_folders_and_files_outside_classes_are_ignored(tmp_path, classes_in):
    classes_in(tmp_path, "cat/1.png", "dog/1.png", ".git/1.png", ".cache/1.png", "loose.png")
    assert list(list_classes(tmp_path)) == ["cat", "dog"]


@pytest.mark.parametrize("hidden", ["cat/._1.png", "cat/.ipynb_checkpoints/1-checkpoint.png"])
def test_hidden_files_are_ignored(tmp_path, classes_in, hidden):
    """Finder and Jupyter create them in every folder they open."""
    classes_in(tmp_path, "cat/1.png", "dog/1.png", hidden)
    assert names(tmp_path, list_classes(tmp_path))["cat"] == ["cat/1.png"]


def test_a_class_can_be_a_symbolic_link_to_a_folder(tmp_path, classes_in):
    classes_in(tmp_path, "elsewhere/1.png", "data/cat/1.png")
    (tmp_path / "data" / "dog").symlink_to(tmp_path / "elsewhere")
    assert names(tmp_path / "data", list_classes(tmp_path / "data"))["dog"] == ["dog/1.png"]


def test_a_class_can_have_any_name(tmp_path, classes_in):
    odd = ["0", "Grüner Baum", "a,b", "don't", "犬", "🦤"]
    classes_in(tmp_path, *(f"{name}/1.png" for name in odd))
    listing = list_classes(tmp_path)
    assert list(listing) == odd
    assert as_images(listing, 0).resized(Resize(8)).in_memory().labels.tolist() == list(range(6))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "holds no classes: put the images of each class into a sub-folder of its own"),
        (["1.png", ".hidden/1.png"], "holds no classes"),
        (["cat/1.png"], "holds a single class, 'cat': at least 2 classes are needed"),
    ],
)
def test_too_few_classes_are_an_error(tmp_path, classes_in, files, message):
    with pytest.raises(EtagError, match=message) as caught:
        list_classes(classes_in(tmp_path, *files))
    assert str(tmp_path) in str(caught.value)


def test_classes_without_images_are_an_error(tmp_path, classes_in):
    classes_in(tmp_path, "cat/1.png", "dog/1.png")
    for name in ("emu", "yak/deep"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "emu" / "notes.txt").write_text("none yet")
    with pytest.raises(
        EtagError, match=r"classes without images \(emu, yak\): add images \(.*.bmp, .*.jpg, .*; not read: 1 .txt"
    ):
        list_classes(tmp_path)


def test_folders_that_a_system_makes_are_no_empty_classes(tmp_path, classes_in):
    classes_in(tmp_path, "cat/1.png", "dog/1.png", "__MACOSX/cat/._1.png")
    assert list(list_classes(tmp_path)) == ["cat", "dog"]


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file"), (b"", "Not a directory")])
def test_a_missing_folder_or_a_file_instead_is_an_error(tmp_path, content, reason):
    if content is not None:
        (tmp_path / "here").write_bytes(content)
    with pytest.raises(EtagError, match=rf"the image folder '.*here' cannot be read: {reason}"):
        list_classes(tmp_path / "here")


def test_labels_are_positions_in_the_listing(tmp_path, classes_in):
    classes_in(tmp_path, "cat/1.png", "cat/2.png", "dog/1.png")
    listing = list_classes(tmp_path)
    images = as_images({name: listing[name] for name in ("dog", "cat")}, workers=3)
    assert [os.path.relpath(file, tmp_path) for file in images.files] == ["dog/1.png", "cat/1.png", "cat/2.png"]
    assert images.labels.tolist() == [0, 1, 1]
    assert images.workers == 3


def test_files_that_are_not_read_are_counted(tmp_path, classes_in):
    classes_in(tmp_path, "cat/1.png", "dog/1.png", "loose.png")
    for name in ("cat/a.MP4", "dog/deep/b.mp4", "notes.txt", "dog/scan", "cat/._1.png", "Thumbs.db", "cat/.DS_Store"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    not_read = NotRead(tmp_path)
    list_classes(tmp_path, not_read=not_read)
    expected = "2 .mp4 (such as cat/a.MP4), 1 beside the class folders (such as loose.png), "
    expected += "1 .txt (such as notes.txt), 1 without an ending (such as dog/scan)"
    assert str(not_read) == f"not read: {expected}"
    assert {"kind": ".mp4", "count": 2, "example": "cat/a.MP4"} in not_read.to_json()


# -- training and test files -----------------------------------------------------------------------


@given(sizes=st.lists(st.integers(2, 40), min_size=1, max_size=4))
def test_hold_out_files_takes_every_fifth_image_or_the_last_of_each_class(sizes):
    listing = {f"class {k}": [f"{k}/{number}" for number in range(size)] for k, size in enumerate(sizes)}
    train, test = hold_out_files(listing)
    assert (train, test) == hold_out_files(listing)
    for name, files in listing.items():
        assert sorted(train[name] + test[name]) == sorted(files)  # each file once
        assert train[name]
        assert test[name] == (files[4::5] or files[-1:])


def test_a_class_with_a_single_image_is_an_error(tmp_path, classes_in):
    classes_in(tmp_path, "cat/1.png", "dog/1.png", "dog/2.png", "emu/1.png")
    with pytest.raises(EtagError, match=r"classes with a single image \(cat, emu\) cannot be split"):
        parts(tmp_path)


@pytest.mark.parametrize("held_out", ["val", "test"])
def test_train_and_val_or_test_folders_are_used_as_they_are(tmp_path, classes_in, held_out):
    classes_in(tmp_path, "train/cat/1.png", "train/dog/1.png", f"{held_out}/cat/2.png", f"{held_out}/dog/3.png")
    train, test = (names(tmp_path, part) for part in parts(tmp_path))
    assert train == {"cat": ["train/cat/1.png"], "dog": ["train/dog/1.png"]}
    assert test == {"cat": [f"{held_out}/cat/2.png"], "dog": [f"{held_out}/dog/3.png"]}


def test_val_is_preferred_to_test(tmp_path, classes_in):
    classes_in(tmp_path, *(f"{part}/{name}/1.png" for part in ("train", "val", "test") for name in ("cat", "dog")))
    assert names(tmp_path, parts(tmp_path)[1])["cat"] == ["val/cat/1.png"]


def test_different_classes_in_train_and_val_are_an_error(tmp_path, classes_in):
    classes_in(tmp_path, "train/cat/1.png", "train/dog/1.png", "train/emu/1.png")
    classes_in(tmp_path, "val/cat/1.png", "val/dog/1.png", "val/yak/1.png")
    with pytest.raises(EtagError, match="train and val need the same classes, but only one has: emu, yak"):
        parts(tmp_path)


@pytest.mark.parametrize("other", ["valid", "validation", "Test"])
def test_train_beside_a_test_folder_of_another_name_is_an_error(tmp_path, classes_in, other):
    """Otherwise a network would silently learn to tell training from validation images."""
    classes_in(tmp_path, *(f"{part}/{name}/{k}.png" for part in ("train", other) for name in "ab" for k in (1, 2)))
    with pytest.raises(EtagError, match=r"train.*val"):
        parts(tmp_path)


def test_a_class_can_be_called_train(tmp_path, classes_in):
    classes_in(tmp_path, *(f"{name}/{k}.png" for name in ("train", "bus") for k in (1, 2)), "train/.hidden/3.png")
    assert list(parts(tmp_path)[0]) == ["bus", "train"]


# -- image sizes -----------------------------------------------------------------------------------


def files_of(folder, picture, *sizes):
    for number, (width, height) in enumerate(sizes):
        picture(folder / f"{number}.png", width=width, height=height)
    return list_images(folder)


def test_common_size_is_the_side_of_equal_squares(tmp_path, picture):
    assert common_size(files_of(tmp_path, picture, (9, 9), (9, 9), (9, 9))) == 9


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ([(8, 8), (9, 9)], r"\(from 8x8 to 9x9 pixels\)"),
        ([(8, 6), (8, 6)], r"\(8x6 pixels\)"),
        ([(8, 6), (6, 8)], r"\(from 6x8 to 8x6 pixels\)"),
    ],
    ids=["mixed", "landscape", "portrait and landscape"],
)
def test_different_or_non_square_sizes_are_an_error(tmp_path, picture, sizes, text):
    with pytest.raises(EtagError, match=rf"not squares of one size {text}: set the side .* --set data.size=N"):
        common_size(files_of(tmp_path, picture, *sizes))


def test_common_size_lists_all_unreadable_files_in_one_error(tmp_path, picture):
    files = files_of(tmp_path, picture, (8, 8), (9, 9))
    for name in ("x.png", "y.png"):
        (tmp_path / name).write_bytes(b"no image")
    bad = [str(tmp_path / name) for name in ("x.png", "y.png", "gone.png")]
    with pytest.raises(EtagError, match=r"^3 image files cannot be read: ") as caught:
        common_size([*files, *bad])
    reasons = ("not an image", "not an image", "file not found")
    expected = ", ".join(f"{file} ({reason})" for file, reason in zip(bad, reasons, strict=True))
    assert expected in str(caught.value)


def test_as_images_reads_the_listed_files_in_class_order(tmp_path, picture):
    pixels = {name: picture(tmp_path / name / "1.png", seed=number) for number, name in enumerate("abc")}
    listing = list_classes(tmp_path)
    read = as_images({name: listing[name] for name in "cab"}, 0).resized(Resize(8)).in_memory().pixels
    assert np.array_equal(read.numpy().transpose(0, 2, 3, 1), [pixels[name] for name in "cab"])
