import numpy as np
import pytest
import torch

from etag.core.random import Placement, Stream
from etag.data.batches import ImageBatches
from etag.data.images import FileImages, MemoryImages, MixedImages, concat_images
from etag.data.preprocess import Preprocess

SIDE = 8


@pytest.fixture(scope="module")
def pictures(tmp_path_factory, picture):
    """Five files, and the pixels of ten images: those in the files, then five that are only in memory."""
    folder = tmp_path_factory.mktemp("files")
    files = [folder / f"{number}.png" for number in range(10)]
    pixels = np.stack([picture(file, seed=number) for number, file in enumerate(files)]).transpose(0, 3, 1, 2)
    for file in files[5:]:
        file.unlink()
    return np.array([str(file) for file in files[:5]]), torch.from_numpy(pixels.copy())


LABELS = [3, 1, 3, 0, 2, 7, 5, 7, 6, 5]


@pytest.fixture
def files(pictures):
    return FileImages(pictures[0], torch.tensor(LABELS[:5]), SIDE, workers=0)


@pytest.fixture
def kept(pictures):
    return MemoryImages(pictures[1][5:], torch.tensor(LABELS[5:]))


@pytest.fixture(params=["files first", "memory first"])
def mixed(request, files, kept, pictures):
    """A mixed set; and its pixels and labels, in order."""
    order = list(range(10))
    if request.param == "memory first":
        files, kept, order = kept, files, order[5:] + order[:5]
    return MixedImages.of(files, kept), pictures[1][order], [LABELS[row] for row in order]


def shown(images, *batches):
    return list(images.batches([torch.tensor(rows, dtype=torch.long) for rows in batches]))


# -- batches ---------------------------------------------------------------------------------------

ROWS = [[9, 0, 5, 4], [7], [2, 2, 8], [1, 3], [6, 5, 9], [0]]  # some batches are of one set only


def test_batches_are_read_in_any_order(mixed):
    images, pixels, labels = mixed
    assert (len(images), images.labels.tolist()) == (10, labels)
    found = shown(images, *ROWS)
    assert len(found) == len(ROWS)
    for rows, batch in zip(ROWS, found, strict=True):
        assert batch.dtype == torch.uint8
        assert torch.equal(batch, pixels[rows])


def test_workers_read_the_files_ahead(files, kept, pictures):
    images = MixedImages.of(FileImages(files.files, files.labels, SIDE, workers=2), kept)
    for rows, batch in zip(ROWS, shown(images, *ROWS), strict=True):
        assert torch.equal(batch, pictures[1][rows])


def test_no_rows_are_a_batch_of_no_images_and_no_batches_are_none(mixed):
    images, _, _ = mixed
    assert [batch.shape for batch in shown(images, [], [])] == [(0, 3, SIDE, SIDE)] * 2
    assert shown(images) == []


def test_they_can_be_batched_like_any_other_set(files, kept, pictures):
    """As with exemplars beside files: every image once an epoch, with its own label."""
    preprocess = Preprocess((0.5,) * 3, (0.25,) * 3, SIDE, flip=False)
    batches = ImageBatches(MixedImages.of(files, kept), preprocess, 4, Stream.root(0), Placement(), augment=False)
    seen = []
    for batch in batches.epoch(0):
        for image, label in zip(batch.inputs, batch.labels.tolist(), strict=True):
            whole = ((image * 0.25 + 0.5) * 255).round().byte()
            (row,) = (row for row in range(10) if torch.equal(pictures[1][row], whole))
            assert LABELS[row] == label
            seen.append(row)
    assert sorted(seen) == list(range(10))
    assert seen != list(range(10))


# -- select, join ----------------------------------------------------------------------------------


def test_rows_can_be_selected_and_selected_again(mixed):
    images, pixels, labels = mixed
    part = images.select(torch.tensor([8, 1, 4, 4, 6]))
    assert (len(part), part.labels.tolist()) == (5, [labels[row] for row in (8, 1, 4, 4, 6)])
    assert torch.equal(shown(part, [4, 0, 2])[0], pixels[[6, 8, 4]])
    again = part.select(torch.tensor([3, 0]))
    assert again.labels.tolist() == [labels[4], labels[8]]
    assert torch.equal(shown(again, [1, 0])[0], pixels[[8, 4]])
    assert len(images) == 10  # as it was


def test_joined_sets_come_one_after_the_other(mixed):
    images, pixels, labels = mixed
    part = images.select(torch.tensor([9, 0]))
    joined = part.join([images, part])
    expected = [9, 0, *range(10), 9, 0]
    assert joined.labels.tolist() == [labels[row] for row in expected]
    rows = [13, 0, 5, 1, 11, 12]
    assert torch.equal(shown(joined, rows)[0], pixels[[expected[row] for row in rows]])
    assert torch.equal(shown(images.join([]), [3, 7])[0], pixels[[3, 7]])


def test_a_part_of_a_joined_set_is_still_the_right_part(mixed):
    images, pixels, labels = mixed
    part = images.join([images]).select(torch.tensor([19, 0, 10]))
    assert part.labels.tolist() == [labels[9], labels[0], labels[0]]
    assert torch.equal(shown(part, [0, 1, 2])[0], pixels[[9, 0, 0]])


# -- together --------------------------------------------------------------------------------------


def test_two_sets_in_memory_stay_in_one_tensor(kept):
    both = concat_images(kept, kept.select(torch.tensor([0])))
    assert isinstance(both, MemoryImages)
    assert both.labels.tolist() == [*LABELS[5:], LABELS[5]]
    assert torch.equal(both.pixels, torch.cat([kept.pixels, kept.pixels[:1]]))


def test_any_two_sets_can_be_together(files, kept, pictures):
    sets = {
        "files": (files, range(5)),
        "kept": (kept, range(5, 10)),
        "mixed": (concat_images(files, kept), range(10)),
    }
    for first, first_rows in sets.values():
        for second, second_rows in sets.values():
            both, expected = concat_images(first, second), [*first_rows, *second_rows]
            assert both.labels.tolist() == [LABELS[row] for row in expected]
            backwards = list(reversed(range(len(expected))))
            assert torch.equal(shown(both, backwards)[0], pictures[1][expected[::-1]])
