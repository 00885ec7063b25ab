import multiprocessing
import os
import random
import resource
from dataclasses import replace

import numpy as np
import pytest
import torch

from etag.core.errors import EtagError
from etag.core.images import Resize
from etag.core.random import Placement, Stream
from etag.data.batches import ImageBatches
from etag.data.images import FileImages, MemoryImages, MixedImages, concat_images, load_into_memory
from etag.data.preprocess import Preprocess

# -- in memory -------------------------------------------------------------------------------------

LABELS = [1, 0, 1, 2, 1, 0]
IMAGES = MemoryImages(torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1), torch.tensor(LABELS))


def contents(images):
    return images.pixels.flatten().tolist(), images.labels.tolist()


def test_batches_and_select_return_rows_in_the_given_order():
    rows, others = torch.tensor([4, 0]), torch.tensor([5, 5, 1])
    assert [batch.flatten().tolist() for batch in IMAGES.read([rows, others])] == [[4, 0], [5, 5, 1]]
    assert contents(IMAGES.select(rows)) == ([4, 0], [1, 1])
    assert len(IMAGES.select(rows)) == 2


def test_join_appends_the_other_sets_in_order():
    assert contents(IMAGES.join([IMAGES])) == (2 * list(range(6)), 2 * LABELS)
    assert contents(IMAGES.join([])) == contents(IMAGES)


def test_images_in_memory_can_be_relabeled_and_resized():
    assert contents(replace(IMAGES, labels=torch.arange(6))) == (list(range(6)), list(range(6)))
    assert IMAGES.resized(Resize(1)) is IMAGES
    larger = IMAGES.resized(Resize(3))
    assert torch.equal(larger.pixels, IMAGES.pixels.expand(6, 1, 3, 3))  # each image has a single gray value
    assert larger.labels is IMAGES.labels


# -- in files --------------------------------------------------------------------------------------

ENDINGS = ("png", "bmp", "webp")
ROWS = [[3, 1], [0], [9, 8, 7, 9], [2, 4], [5], [6, 0], [1]]  # more batches than are read in advance


@pytest.fixture(scope="module")
def files_and_pixels(tmp_path_factory, picture):
    """Ten files of different formats, and their pixels with channels first."""
    folder = tmp_path_factory.mktemp("files")
    files = [folder / f"{number}.{ENDINGS[number % 3]}" for number in range(10)]
    pixels = np.stack([picture(file, seed=number) for number, file in enumerate(files)])
    return [str(file) for file in files], torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())


@pytest.fixture
def images(files_and_pixels):
    """images(workers) -> the ten files as a set, labeled 100, 101, ..."""
    return lambda workers=0: FileImages(
        np.array(files_and_pixels[0]), torch.arange(100, 110), resize=Resize(8), workers=workers
    )


@pytest.fixture
def with_bad_files(tmp_path, images):
    """with_bad_files(count, workers) -> the ten files followed by `count` unreadable ones, and their paths."""

    def add(count, workers=0):
        good = images(workers)
        bad = [str(tmp_path / f"bad{number}.png") for number in range(count)]
        for file in bad:
            with open(file, "wb") as output:
                output.write(b"no image")
        return good.join([FileImages(np.array(bad), torch.arange(count), resize=Resize(8), workers=workers)]), bad

    return add


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_of_files_are_decoded_in_the_given_order(images, files_and_pixels, workers):
    decoded = list(images(workers).read([torch.tensor(rows) for rows in ROWS]))
    assert len(decoded) == len(ROWS)
    for rows, batch in zip(ROWS, decoded, strict=True):
        assert batch.dtype == torch.uint8
        assert torch.equal(batch, files_and_pixels[1][rows])


@pytest.mark.parametrize("workers", [0, 2])
def test_in_memory_decodes_all_files(images, files_and_pixels, workers):
    memory = images(workers).in_memory()
    assert torch.equal(memory.pixels, files_and_pixels[1])
    assert torch.equal(memory.labels, torch.arange(100, 110))
    assert images().nbytes == memory.pixels.nbytes


def test_in_memory_preserves_the_order_over_several_chunks(images):
    rows = torch.from_numpy(np.random.default_rng(0).integers(0, 10, 150))
    many = images(2).select(rows)
    assert torch.equal(many.in_memory().pixels, images().in_memory().pixels[rows])


def test_files_can_be_selected_joined_relabeled_and_resized(images, files_and_pixels):
    part = images().select(torch.tensor([7, 2]))
    assert (len(part), part.labels.tolist()) == (2, [107, 102])
    joined = part.join([images().select(torch.tensor([5])), part])
    assert joined.labels.tolist() == [107, 102, 105, 107, 102]
    assert torch.equal(joined.in_memory().pixels, files_and_pixels[1][[7, 2, 5, 7, 2]])
    assert replace(part, labels=torch.tensor([0, 1])).in_memory().labels.tolist() == [0, 1]
    larger = part.resized(Resize(16))
    assert larger.nbytes == larger.in_memory().pixels.nbytes == 2 * 3 * 16 * 16
    assert larger.in_memory().pixels.shape == (2, 3, 16, 16)


def test_file_names_can_have_any_characters(tmp_path, picture):
    names = ["Ωμέγα 犬.png", "a b\tc.png", os.fsdecode(b"\xff\xfe.png")]
    pixels = [picture(tmp_path / name, seed=number) for number, name in enumerate(names)]
    files = FileImages(np.array([str(tmp_path / name) for name in names]), torch.arange(3), resize=Resize(8), workers=1)
    assert np.array_equal(files.in_memory().pixels.numpy().transpose(0, 2, 3, 1), pixels)


@pytest.mark.parametrize("workers", [0, 2])
def test_reading_files_does_not_use_global_random_generators(images, workers):
    def states():
        return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()  # noqa: NPY002

    images(workers).in_memory()  # some libraries draw random numbers when they are first imported
    before = states()
    list(images(workers).read([torch.tensor(rows) for rows in ROWS]))
    images(workers).in_memory()
    assert states() == before


def test_batches_are_read_lazily(with_bad_files):
    all_files, _ = with_bad_files(1)
    rows = torch.arange(10)
    batches = all_files.read([rows, torch.tensor([10])])
    assert torch.equal(next(batches), all_files.select(rows).in_memory().pixels)
    with pytest.raises(EtagError, match=r"bad0\.png"):
        next(batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_file_raises_an_error_at_its_batch(with_bad_files, workers):
    all_files, bad = with_bad_files(1, workers)
    with pytest.raises(EtagError) as caught:
        list(all_files.read([torch.tensor([0, 1]), torch.tensor([2, 10])]))
    assert str(caught.value) == (f"1 image file cannot be read: {bad[0]} (not an image); replace or remove it.")


@pytest.mark.parametrize("workers", [0, 2])
def test_in_memory_lists_all_unreadable_files_in_one_error(with_bad_files, workers):
    all_files, bad = with_bad_files(70, workers)  # so that a whole chunk is unreadable
    os.remove(bad[3])
    with pytest.raises(EtagError, match=r"^70 image files cannot be read: .*; replace or remove them.$") as caught:
        all_files.in_memory()
    message = str(caught.value)
    assert [file for file in bad if file not in message] == []
    assert f"{bad[3]} (file not found)" in message
    assert "files0" not in message


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_of_no_rows_has_no_images(images, workers):
    """With several processes the last batch may have fewer rows than there are processes."""
    no_rows = torch.tensor([], dtype=torch.long)
    (memory,), (read,) = images().in_memory().read([no_rows]), images(workers).read([no_rows])
    assert (read.shape, read.dtype) == (memory.shape, memory.dtype) == ((0, 3, 8, 8), torch.uint8)


@pytest.mark.parametrize("workers", [0, 1])
def test_in_memory_of_no_files_has_no_images(images, workers):
    memory = images(workers).select(torch.tensor([], dtype=torch.long)).in_memory()
    assert (memory.pixels.shape, memory.pixels.dtype) == ((0, 3, 8, 8), torch.uint8)


def test_no_batches_give_an_empty_iterator(images):
    assert list(images(2).read([])) == []


def test_in_memory_needs_few_file_descriptors(images):
    """Each batch from a worker holds a file descriptor until it is copied; the usual limit is 1024."""
    used = [int(number) for number in os.listdir("/proc/self/fd")]
    limits, limit = resource.getrlimit(resource.RLIMIT_NOFILE), max(used) + 30
    many = images(1).select(torch.zeros(64 * (limit - len(used)), dtype=torch.long))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
    try:
        assert len(many.in_memory()) == len(many)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_worker_processes_stop_when_reading_ends_early_or_completes(images):
    others = set(multiprocessing.active_children())  # of other tests
    batches = images(2).read([torch.tensor(rows) for rows in ROWS])
    next(batches)
    assert len(set(multiprocessing.active_children()) - others) == 2
    batches.close()
    assert set(multiprocessing.active_children()) <= others
    list(images(2).read([torch.tensor(rows) for rows in ROWS]))
    assert set(multiprocessing.active_children()) <= others


# -- sets of different kinds -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed_files_and_pixels(tmp_path_factory, picture):
    """Five files, and the pixels of ten images: those in the files, then five that are only in memory."""
    folder = tmp_path_factory.mktemp("files")
    files = [folder / f"{number}.png" for number in range(10)]
    pixels = np.stack([picture(file, seed=number) for number, file in enumerate(files)]).transpose(0, 3, 1, 2)
    for file in files[5:]:
        file.unlink()
    return np.array([str(file) for file in files[:5]]), torch.from_numpy(pixels.copy())


MIXED_LABELS = [3, 1, 3, 0, 2, 7, 5, 7, 6, 5]


@pytest.fixture
def files(mixed_files_and_pixels):
    return FileImages(mixed_files_and_pixels[0], torch.tensor(MIXED_LABELS[:5]), Resize(8), workers=0)


@pytest.fixture
def memory(mixed_files_and_pixels):
    return MemoryImages(mixed_files_and_pixels[1][5:], torch.tensor(MIXED_LABELS[5:]))


@pytest.fixture(params=["files first", "memory first"])
def mixed(request, files, memory, mixed_files_and_pixels):
    """A mixed set, its pixels and its labels."""
    order = list(range(10))
    if request.param == "memory first":
        files, memory, order = memory, files, order[5:] + order[:5]
    return MixedImages.of(files, memory), mixed_files_and_pixels[1][order], [MIXED_LABELS[row] for row in order]


def read_batches(images, *batches):
    return list(images.read([torch.tensor(rows, dtype=torch.long) for rows in batches]))


# batches ------------------------------------------------------------------------------------------

MIXED_ROWS = [[9, 0, 5, 4], [7], [2, 2, 8], [1, 3], [6, 5, 9], [0]]  # some batches have images of one set only


def test_mixed_batches_are_read_in_the_given_order(mixed):
    images, pixels, labels = mixed
    assert (len(images), images.labels.tolist()) == (10, labels)
    batches = read_batches(images, *MIXED_ROWS)
    assert len(batches) == len(MIXED_ROWS)
    for rows, batch in zip(MIXED_ROWS, batches, strict=True):
        assert batch.dtype == torch.uint8
        assert torch.equal(batch, pixels[rows])


def test_mixed_batches_are_the_same_with_worker_processes(files, memory, mixed_files_and_pixels):
    images = MixedImages.of(FileImages(files.files, files.labels, Resize(8), workers=2), memory)
    for rows, batch in zip(MIXED_ROWS, read_batches(images, *MIXED_ROWS), strict=True):
        assert torch.equal(batch, mixed_files_and_pixels[1][rows])


def test_mixed_batches_can_be_empty(mixed):
    images, _, _ = mixed
    assert [batch.shape for batch in read_batches(images, [], [])] == [(0, 3, 8, 8)] * 2
    assert read_batches(images) == []


def test_image_batches_read_each_mixed_image_once_per_epoch_with_its_label(files, memory, mixed_files_and_pixels):
    """Exemplars in memory are trained together with files."""
    preprocess = Preprocess((0.5,) * 3, (0.25,) * 3, 8, flip=False)
    batches = ImageBatches(MixedImages.of(files, memory), preprocess, 4, Stream.root(0), Placement(), augment=False)
    rows_read = []
    for batch in batches.epoch(0):
        for image, label in zip(batch.inputs, batch.labels.tolist(), strict=True):
            pixels = ((image * 0.25 + 0.5) * 255).round().byte()
            (row,) = (row for row in range(10) if torch.equal(mixed_files_and_pixels[1][row], pixels))
            assert MIXED_LABELS[row] == label
            rows_read.append(row)
    assert sorted(rows_read) == list(range(10))
    assert rows_read != list(range(10))


# select, join -------------------------------------------------------------------------------------


def test_rows_of_a_mixed_set_can_be_selected_repeatedly(mixed):
    images, pixels, labels = mixed
    part = images.select(torch.tensor([8, 1, 4, 4, 6]))
    assert (len(part), part.labels.tolist()) == (5, [labels[row] for row in (8, 1, 4, 4, 6)])
    assert torch.equal(read_batches(part, [4, 0, 2])[0], pixels[[6, 8, 4]])
    again = part.select(torch.tensor([3, 0]))
    assert again.labels.tolist() == [labels[4], labels[8]]
    assert torch.equal(read_batches(again, [1, 0])[0], pixels[[8, 4]])
    assert len(images) == 10  # unchanged


def test_joined_mixed_sets_follow_each_other(mixed):
    images, pixels, labels = mixed
    part = images.select(torch.tensor([9, 0]))
    joined = part.join([images, part])
    expected = [9, 0, *range(10), 9, 0]
    assert joined.labels.tolist() == [labels[row] for row in expected]
    rows = [13, 0, 5, 1, 11, 12]
    assert torch.equal(read_batches(joined, rows)[0], pixels[[expected[row] for row in rows]])
    assert torch.equal(read_batches(images.join([]), [3, 7])[0], pixels[[3, 7]])


def test_rows_of_a_joined_mixed_set_can_be_selected(mixed):
    images, pixels, labels = mixed
    part = images.join([images]).select(torch.tensor([19, 0, 10]))
    assert part.labels.tolist() == [labels[9], labels[0], labels[0]]
    assert torch.equal(read_batches(part, [0, 1, 2])[0], pixels[[9, 0, 0]])


# -- concat_images ---------------------------------------------------------------------------------


def test_concat_images_of_two_memory_sets_is_one_memory_set(memory):
    both = concat_images(memory, memory.select(torch.tensor([0])))
    assert isinstance(both, MemoryImages)
    assert both.labels.tolist() == [*MIXED_LABELS[5:], MIXED_LABELS[5]]
    assert torch.equal(both.pixels, torch.cat([memory.pixels, memory.pixels[:1]]))


def test_concat_images_joins_sets_of_any_kinds(files, memory, mixed_files_and_pixels):
    sets = {
        "files": (files, range(5)),
        "memory": (memory, range(5, 10)),
        "mixed": (concat_images(files, memory), range(10)),
    }
    for first, first_rows in sets.values():
        for second, second_rows in sets.values():
            both, expected = concat_images(first, second), [*first_rows, *second_rows]
            assert both.labels.tolist() == [MIXED_LABELS[row] for row in expected]
            backwards = list(reversed(range(len(expected))))
            assert torch.equal(read_batches(both, backwards)[0], mixed_files_and_pixels[1][expected[::-1]])


# -- load_into_memory ------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "loaded"), [(6, True), (5, False), (0, False)])
def test_load_into_memory_decodes_files_only_if_both_sets_fit(images, limit, loaded):
    train = images().select(torch.arange(8)).resized(Resize(448))  # 8 images need 4.6 MiB, 10 need 5.7 MiB
    test = images().select(torch.tensor([8, 9])).resized(Resize(448))
    results = load_into_memory(train, test, limit)
    if not loaded:
        assert results == (train, test)
        return
    for result, files in zip(results, (train, test), strict=True):
        assert isinstance(result, MemoryImages)
        assert torch.equal(result.pixels, files.in_memory().pixels)
        assert torch.equal(result.labels, files.labels)


def test_load_into_memory_leaves_sets_in_memory_unchanged():
    assert load_into_memory(IMAGES, IMAGES, 0) == (IMAGES, IMAGES)


def test_load_into_memory_lists_unreadable_files_of_both_sets(with_bad_files):
    train, bad = with_bad_files(2)
    test = train.select(torch.tensor([11]))
    train = train.select(torch.arange(11))
    with pytest.raises(EtagError, match="2 image files cannot be read") as caught:
        load_into_memory(train, test, 1)
    assert all(file in str(caught.value) for file in bad)


def test_sets_of_different_sizes_are_joined_at_their_common_size():
    small, large = IMAGES.resized(Resize(3)), replace(IMAGES, stored=IMAGES.pixels.expand(6, 1, 3, 3).contiguous())
    for joined in (small.join([large]), large.join([small])):
        assert torch.equal(joined.pixels, torch.cat([large.pixels, large.pixels]))
    assert small.join([small]).stored.shape[-1] == 1
