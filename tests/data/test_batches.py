from itertools import chain

import numpy as np
import pytest
import torch

from etag.core.errors import EtagError
from etag.core.images import Resize
from etag.core.random import Placement, Stream
from etag.data.batches import FeatureBatches, ImageBatches
from etag.data.images import FileImages, MemoryImages
from etag.data.preprocess import Preprocess

PLAIN = Preprocess((0.0,), (1 / 255,), size=8, flip=True)  # normalization leaves the bytes unchanged
STREAM = Stream.root(0).child("solver")


def images(count):
    """Random images whose label is their row number."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, 1, 8, 8), dtype=np.uint8)
    return MemoryImages(torch.from_numpy(pixels), torch.arange(count))


def batches(count=20, size=6, rank=0, world=1, **options):
    return ImageBatches(images(count), PLAIN, size, STREAM, Placement(rank=rank, world=world), **options)


def labels(epoch):
    return [batch.labels.tolist() for batch in epoch]


def flat(lists):
    return list(chain.from_iterable(lists))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("count", "size"), [(20, 6), (18, 6), (4, 6), (1, 1)])
def test_an_epoch_visits_each_image_once(count, size, shuffle):
    source = batches(count, size, shuffle=shuffle)
    visited = labels(source.epoch(0))
    assert sorted(flat(visited)) == list(range(count))
    assert len(visited) == len(source) == -(-count // size)
    assert {len(rows) for rows in visited[:-1]} <= {size}


def test_an_epoch_can_be_repeated_and_differs_from_the_next():
    source = batches()
    first, second = labels(source.epoch(0)), labels(source.epoch(1))
    assert first != second
    assert labels(source.epoch(0)) == first
    assert labels(batches().epoch(1)) == second  # without reading epoch 0 first


def test_augmentation_repeats_exactly_and_differs_by_epoch_and_step():
    source = batches(count=12, size=12)
    (first,), (again,), (other,) = (list(source.epoch(index)) for index in (0, 0, 1))
    assert torch.equal(first.inputs, again.inputs)
    in_order = [batch.inputs[batch.labels.argsort()] for batch in (first, other)]
    assert not torch.equal(*in_order)
    keys = {batch.draws.stream.key for epoch in range(2) for batch in batches().epoch(epoch)}
    assert len(keys) == 2 * len(batches())


def test_without_shuffling_and_augmentation_images_are_unchanged_and_in_order():
    source = batches(shuffle=False, augment=False)
    assert flat(labels(source.epoch(3))) == list(range(20))
    assert torch.equal(torch.cat([batch.inputs for batch in source.epoch(3)]).round().byte(), images(20).pixels)


@pytest.mark.parametrize(("count", "steps"), [(20, 3), (18, 3), (6, 1), (5, 1)])
def test_the_short_last_batch_is_dropped_if_there_is_a_full_one(count, steps):
    source = batches(count, 6, drop_last=True)
    sizes = [len(rows) for rows in labels(source.epoch(0))]
    assert sizes == [min(count, 6)] * steps
    assert len(source) == steps


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("drop_last", [True, False])
def test_several_processes_read_the_same_batches_as_one(world, drop_last):
    count = 30  # divisible by the number of processes, so no image is skipped
    alone = list(batches(count, 12, drop_last=drop_last).epoch(2))
    several = [list(batches(count, 12, rank, world, drop_last=drop_last).epoch(2)) for rank in range(world)]
    for step, batch in enumerate(alone):
        shares = [own[step] for own in several]
        assert torch.equal(torch.cat([share.labels for share in shares]), batch.labels)
        assert torch.equal(torch.cat([share.inputs for share in shares]), batch.inputs)  # the same augmentation
        assert {share.total for share in shares} == {batch.total} == {len(batch.labels)}
        assert len({len(share.labels) for share in shares}) == 1


def test_images_left_over_after_equal_shares_are_skipped_in_training():
    several = [labels(batches(21, 6, rank, 2).epoch(0)) for rank in range(2)]
    visited = flat(flat(several))
    assert len(visited) == len(set(visited)) == 20


def test_without_shuffling_no_image_is_skipped():
    several = [labels(batches(21, 6, rank, 2, shuffle=False).epoch(0)) for rank in range(2)]
    both = [a + b for a, b in zip(*several, strict=True)]
    assert flat(both) == list(range(21))


def test_a_batch_size_that_the_processes_do_not_divide_is_an_error():
    with pytest.raises(EtagError, match="batch_size=7 cannot be divided evenly among 2 processes"):
        batches(size=7, world=2)
    batches(size=7, world=2, shuffle=False)


@pytest.mark.parametrize(("count", "world"), [(0, 1), (1, 2)])
def test_too_few_images_for_the_processes_are_an_error(count, world):
    with pytest.raises(EtagError, match=f"{count} images are too few"):
        batches(count, 6, world=world)


def test_feature_batches_use_the_passes_in_turn():
    passes = torch.arange(3.0)[:, None, None] * 100 + torch.arange(10.0)[None, :, None]
    source = FeatureBatches(passes, torch.arange(10), 4, STREAM, Placement())
    for epoch in range(7):
        for batch in source.epoch(epoch):
            assert batch.inputs.flatten().tolist() == [100 * (epoch % 3) + row for row in batch.labels.tolist()]


def test_feature_batches_use_the_same_order_and_shares_as_image_batches():
    def feature_labels(rank=0, world=1):
        placement = Placement(rank=rank, world=world)
        own = FeatureBatches(torch.zeros(1, 20, 3), torch.arange(20), 6, STREAM, placement, drop_last=True)
        return labels(own.epoch(1))

    assert feature_labels() == labels(batches(drop_last=True).epoch(1))
    assert [a + b for a, b in zip(feature_labels(0, 2), feature_labels(1, 2), strict=True)] == feature_labels()


@pytest.mark.parametrize(
    ("rows", "size", "world", "drop_last", "smallest"),
    [(10, 4, 1, False, 2), (10, 4, 1, True, 4), (9, 4, 1, False, 1), (3, 4, 1, True, 3), (12, 4, 2, False, 2)],
)
def test_smallest_is_the_size_of_the_smallest_batch(rows, size, world, drop_last, smallest):
    images = MemoryImages(torch.zeros(rows, 1, 8, 8, dtype=torch.uint8), torch.zeros(rows, dtype=torch.long))
    preprocess = Preprocess((0.5,), (0.5,), 8, flip=False)
    placement = Placement(world=world)
    batches = ImageBatches(images, preprocess, size, Stream.root(0), placement, drop_last=drop_last)
    assert batches.smallest == smallest == min(len(batch.labels) for batch in batches.epoch(0))


# -- images in files -------------------------------------------------------------------------------

COLOR = Preprocess((0.0,) * 3, (1 / 255,) * 3, size=8, flip=True)


@pytest.fixture(scope="module")
def files_and_memory(tmp_path_factory, picture):
    """The same 21 images in files and in memory."""
    folder = tmp_path_factory.mktemp("files")
    for number in range(21):
        picture(folder / f"{number:02}.png", seed=number)
    files = FileImages(np.array(sorted(map(str, folder.iterdir()))), torch.arange(21), resize=Resize(8), workers=1)
    return files, files.in_memory()


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("size", [6, 20])
@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"shuffle": False, "augment": False}], ids=str)
def test_images_in_files_give_the_same_batches_as_in_memory(files_and_memory, world, size, options):
    """With 21 unshuffled images in batches of 20, the second process has no row of the last batch."""
    for rank in range(world):
        placement = Placement(rank=rank, world=world)
        files, memory = (ImageBatches(images, COLOR, size, STREAM, placement, **options) for images in files_and_memory)
        assert len(files) == len(memory)
        for from_files, from_memory in zip(files.epoch(1), memory.epoch(1), strict=True):
            assert torch.equal(from_files.inputs, from_memory.inputs)
            assert torch.equal(from_files.labels, from_memory.labels)
            assert from_files.total == from_memory.total
            assert from_files.draws.stream == from_memory.draws.stream


def test_two_processes_together_read_the_batches_of_one_from_files(files_and_memory):
    files, _ = files_and_memory
    alone, *several = (
        list(ImageBatches(files, COLOR, 6, STREAM, placement, drop_last=True).epoch(0))
        for placement in (Placement(), Placement(rank=0, world=2), Placement(rank=1, world=2))
    )
    assert len(alone) == 3
    for batch, *shares in zip(alone, *several, strict=True):
        assert torch.equal(torch.cat([share.inputs for share in shares]), batch.inputs)
        assert torch.equal(torch.cat([share.labels for share in shares]), batch.labels)
