import multiprocessing
import os
import random
import resource

import numpy as np
import pytest
import torch

from etag.core.errors import EtagError
from etag.data.images import FileImages, MemoryImages

# -- in memory -------------------------------------------------------------------------------------

LABELS = [1, 0, 1, 2, 1, 0]
IMAGES = MemoryImages(torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1), torch.tensor(LABELS))


def shown(images):
    return images.pixels.flatten().tolist(), images.labels.tolist()


def test_batches_and_select_take_rows_in_the_order_asked():
    rows, others = torch.tensor([4, 0]), torch.tensor([5, 5, 1])
    assert [batch.flatten().tolist() for batch in IMAGES.batches([rows, others])] == [[4, 0], [5, 5, 1]]
    assert shown(IMAGES.select(rows)) == ([4, 0], [1, 1])
    assert len(IMAGES.select(rows)) == 2


def test_join_keeps_the_order():
    assert shown(IMAGES.join([IMAGES])) == (2 * list(range(6)), 2 * LABELS)
    assert shown(IMAGES.join([])) == shown(IMAGES)


def test_images_in_memory_can_be_relabeled_and_resized():
    assert shown(IMAGES.relabeled(torch.arange(6))) == (list(range(6)), list(range(6)))
    assert IMAGES.resized(1) is IMAGES
    larger = IMAGES.resized(3)
    assert torch.equal(larger.pixels, IMAGES.pixels.expand(6, 1, 3, 3))  # each is of one gray
    assert larger.labels is IMAGES.labels


# -- in files --------------------------------------------------------------------------------------

ENDINGS = ("png", "bmp", "webp")
ROWS = [[3, 1], [0], [9, 8, 7, 9], [2, 4], [5], [6, 0], [1]]  # more batches than are read ahead


@pytest.fixture(scope="module")
def pictures(tmp_path_factory, picture):
    """Ten files of different formats and their pixels, channels first."""
    folder = tmp_path_factory.mktemp("files")
    files = [folder / f"{number}.{ENDINGS[number % 3]}" for number in range(10)]
    pixels = np.stack([picture(file, seed=number) for number, file in enumerate(files)])
    return [str(file) for file in files], torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())


@pytest.fixture
def images(pictures):
    """images(workers) -> the ten files as a set, labeled 100, 101, ..."""
    return lambda workers=0: FileImages(np.array(pictures[0]), torch.arange(100, 110), side=8, workers=workers)


@pytest.fixture
def with_bad_ones(tmp_path, images):
    """with_bad_ones(count, workers) -> the ten files, of which the last ones are none."""

    def spoil(count, workers=0):
        whole = images(workers)
        bad = [str(tmp_path / f"bad{number}.png") for number in range(count)]
        for file in bad:
            with open(file, "wb") as content:
                content.write(b"no image")
        return whole.join([FileImages(np.array(bad), torch.arange(count), side=8, workers=workers)]), bad

    return spoil


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_files_come_decoded_in_the_order_asked(images, pictures, workers):
    made = list(images(workers).batches([torch.tensor(rows) for rows in ROWS]))
    assert len(made) == len(ROWS)
    for rows, batch in zip(ROWS, made, strict=True):
        assert batch.dtype == torch.uint8
        assert torch.equal(batch, pictures[1][rows])


@pytest.mark.parametrize("workers", [0, 2])
def test_in_memory_they_are_the_same(images, pictures, workers):
    kept = images(workers).in_memory()
    assert torch.equal(kept.pixels, pictures[1])
    assert torch.equal(kept.labels, torch.arange(100, 110))
    assert images().nbytes == kept.pixels.nbytes


def test_more_files_than_one_portion_keep_their_order(images):
    rows = torch.from_numpy(np.random.default_rng(0).integers(0, 10, 150))
    many = images(2).select(rows)
    assert torch.equal(many.in_memory().pixels, images().in_memory().pixels[rows])


def test_files_can_be_selected_joined_relabeled_and_resized(images, pictures):
    part = images().select(torch.tensor([7, 2]))
    assert (len(part), part.labels.tolist()) == (2, [107, 102])
    joined = part.join([images().select(torch.tensor([5])), part])
    assert joined.labels.tolist() == [107, 102, 105, 107, 102]
    assert torch.equal(joined.in_memory().pixels, pictures[1][[7, 2, 5, 7, 2]])
    assert part.relabeled(torch.tensor([0, 1])).in_memory().labels.tolist() == [0, 1]
    larger = part.resized(16)
    assert larger.nbytes == larger.in_memory().pixels.nbytes == 2 * 3 * 16 * 16
    assert larger.in_memory().pixels.shape == (2, 3, 16, 16)


def test_names_of_any_script_and_bytes_are_read(tmp_path, picture):
    names = ["Ωμέγα 犬.png", "a b\tc.png", os.fsdecode(b"\xff\xfe.png")]
    pixels = [picture(tmp_path / name, seed=number) for number, name in enumerate(names)]
    files = FileImages(np.array([str(tmp_path / name) for name in names]), torch.arange(3), side=8, workers=1)
    assert np.array_equal(files.in_memory().pixels.numpy().transpose(0, 2, 3, 1), pixels)


@pytest.mark.parametrize("workers", [0, 2])
def test_reading_files_draws_from_no_global_generator(images, workers):
    def states():
        return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()  # noqa: NPY002

    images(workers).in_memory()  # some libraries draw when they are first imported
    before = states()
    list(images(workers).batches([torch.tensor(rows) for rows in ROWS]))
    images(workers).in_memory()
    assert states() == before


def test_nothing_is_read_before_it_is_asked_for(with_bad_ones):
    spoilt, _ = with_bad_ones(1)
    rows = torch.arange(10)
    batches = spoilt.batches([rows, torch.tensor([10])])
    assert torch.equal(next(batches), spoilt.select(rows).in_memory().pixels)
    with pytest.raises(EtagError, match=r"bad0\.png"):
        next(batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_can_not_be_read_stops_its_batch(with_bad_ones, workers):
    spoilt, bad = with_bad_ones(1, workers)
    with pytest.raises(EtagError) as caught:
        list(spoilt.batches([torch.tensor([0, 1]), torch.tensor([2, 10])]))
    assert str(caught.value) == (f"1 image file cannot be read: {bad[0]} (not an image); replace or remove it.")


@pytest.mark.parametrize("workers", [0, 2])
def test_all_files_that_can_not_be_read_are_told_at_once(with_bad_ones, workers):
    spoilt, bad = with_bad_ones(70, workers)  # a portion with none to be read among them
    os.remove(bad[3])
    with pytest.raises(EtagError, match=r"^70 image files cannot be read: .*; replace or remove them.$") as caught:
        spoilt.in_memory()
    told = str(caught.value)
    assert [file for file in bad if file not in told] == []
    assert f"{bad[3]} (no longer there)" in told
    assert "files0" not in told


@pytest.mark.parametrize("workers", [0, 1])
def test_a_share_of_no_rows_is_a_batch_of_no_images(images, workers):
    """With several processes the last batch of a sweep may be too short for all of them."""
    nothing = torch.tensor([], dtype=torch.long)
    (kept,), (read,) = images().in_memory().batches([nothing]), images(workers).batches([nothing])
    assert (read.shape, read.dtype) == (kept.shape, kept.dtype) == ((0, 3, 8, 8), torch.uint8)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_set_of_no_files_can_be_in_memory(images, workers):
    kept = images(workers).select(torch.tensor([], dtype=torch.long)).in_memory()
    assert (kept.pixels.shape, kept.pixels.dtype) == ((0, 3, 8, 8), torch.uint8)


def test_no_batches_are_none(images):
    assert list(images(2).batches([])) == []


def test_many_files_need_few_open_ones(images):
    """Each batch that comes from a worker holds a file descriptor until it is copied; 1024 are allowed as a rule."""
    used = [int(number) for number in os.listdir("/proc/self/fd")]
    limits, limit = resource.getrlimit(resource.RLIMIT_NOFILE), max(used) + 30
    many = images(1).select(torch.zeros(64 * (limit - len(used)), dtype=torch.long))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
    try:
        assert len(many.in_memory()) == len(many)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_workers_end_with_the_reading_even_if_it_is_cut_short(images):
    batches = images(2).batches([torch.tensor(rows) for rows in ROWS])
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    batches.close()
    assert multiprocessing.active_children() == []
    list(images(2).batches([torch.tensor(rows) for rows in ROWS]))
    assert multiprocessing.active_children() == []
