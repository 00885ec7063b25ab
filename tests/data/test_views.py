import numpy as np
import pytest
import torch

from etag.data.views import IDENTITY, ROTATIONS, VIEW_TRANSFORMS

IMAGES = torch.arange(3 * 2 * 4 * 4, dtype=torch.float32).view(3, 2, 4, 4)
LABELS = torch.tensor([5, 0, 2])


# -- all of them -----------------------------------------------------------------------------------


def test_image_k_turned_r_times_is_row_3r_plus_k():
    shown = ROTATIONS.of(IMAGES, LABELS)
    assert shown.rows.shape == (12, 2, 4, 4)
    for k in range(3):
        for r in range(4):
            assert np.array_equal(shown.rows[3 * r + k], np.rot90(IMAGES[k].numpy(), r, axes=(1, 2)))


def test_its_label_is_4y_plus_r():
    assert ROTATIONS.of(IMAGES, LABELS).labels.tolist() == [20, 0, 8, 21, 1, 9, 22, 2, 10, 23, 3, 11]


def test_the_images_themselves_come_first_and_all_rows_are_looked_at():
    shown = ROTATIONS.of(IMAGES, LABELS)
    assert shown.images == 3
    assert shown.picked is None
    assert torch.equal(shown.rows[:3], IMAGES)


def test_views_are_laid_out_channels_last():
    assert ROTATIONS.of(IMAGES, LABELS).rows.is_contiguous(memory_format=torch.channels_last)
    chosen = ROTATIONS.choose(torch.arange(3), 2)
    assert ROTATIONS.some(IMAGES, LABELS, chosen).rows.is_contiguous(memory_format=torch.channels_last)


def test_no_views_are_the_images():
    assert IDENTITY.count == 1
    shown = IDENTITY.of(IMAGES, LABELS)
    assert torch.equal(shown.rows, IMAGES)
    assert shown.images == 3
    assert shown.labels.tolist() == [5, 0, 2]


@pytest.mark.parametrize("views", [IDENTITY, ROTATIONS], ids=lambda views: views.name)
def test_there_are_as_many_rows_as_labels(views):
    shown = views.of(IMAGES, torch.zeros(3, dtype=torch.long))
    assert len(shown.rows) == len(shown.labels) == 3 * views.count


# -- some of them ----------------------------------------------------------------------------------

KINDS = [(name, number) for name, views in VIEW_TRANSFORMS.items() for number in range(1, views.count + 1)]
COLORED = torch.randn(7, 3, 4, 4, generator=torch.Generator().manual_seed(0))
CLASSES = torch.tensor([4, 0, 2, 2, 1, 0, 3])


def order(rows, seed=0):
    return torch.randperm(rows, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rows", [1, 4, 7, 24, 50])
@pytest.mark.parametrize(("name", "number"), KINDS)
def test_the_views_of_a_row_are_distinct_and_all_are_chosen_equally_often(name, number, rows):
    views = VIEW_TRANSFORMS[name]
    chosen = views.choose(order(rows), number)
    assert chosen.shape == (rows, number)
    assert all(len(set(row)) == number for row in chosen.tolist())
    assert set(chosen.flatten().tolist()) <= set(range(views.count))
    for column in chosen.T:  # even the first of each row alone
        often = column.bincount(minlength=views.count)
        assert often.max() - often.min() <= 1
    often = chosen.flatten().bincount(minlength=views.count)
    assert often.max() - often.min() <= min(number, views.count - number)
    if rows % views.count == 0:
        assert set(often.tolist()) == {rows * number // views.count}


def test_which_views_a_row_has_depends_on_its_place_only():
    places = order(50)
    assert torch.equal(ROTATIONS.choose(places, 2)[10:20], ROTATIONS.choose(places[10:20], 2))
    assert not torch.equal(ROTATIONS.choose(places, 1), ROTATIONS.choose(order(50, seed=1), 1))


@pytest.mark.parametrize(("name", "number"), KINDS)
def test_the_rows_looked_at_are_the_chosen_views_and_no_others_are_made(name, number):
    views = VIEW_TRANSFORMS[name]
    chosen = views.choose(order(7), number)
    shown = views.some(COLORED, CLASSES, chosen)
    assert shown.images == 7
    assert torch.equal(shown.rows[:7], COLORED)
    assert len(shown.picked) == len(shown.labels) == 7 * number
    for place, (row, label) in enumerate(zip(shown.picked, shown.labels, strict=True)):
        k, r = place // number, int(chosen[place // number, place % number])
        assert torch.equal(shown.rows[row], views.transforms[r](COLORED[k : k + 1])[0])
        assert label == views.count * CLASSES[k] + r
    assert len(shown.rows) == 7 + (chosen > 0).sum()


@pytest.mark.parametrize("chosen", [[[0]] * 3, [[3]] * 3, [[2], [0], [2]], [[3, 1], [0, 2], [1, 0]]], ids=str)
def test_any_views_can_be_chosen_in_any_order(chosen):
    shown = ROTATIONS.some(IMAGES, LABELS, torch.tensor(chosen))
    pairs = [(k, r) for k, row in enumerate(chosen) for r in row]
    expected = np.stack([np.rot90(IMAGES[k].numpy(), r, axes=(1, 2)) for k, r in pairs])
    assert np.array_equal(shown.rows[shown.picked], expected)
    assert shown.labels.tolist() == [4 * [5, 0, 2][k] + r for k, r in pairs]


@pytest.mark.parametrize("name", VIEW_TRANSFORMS)
def test_all_views_chosen_are_all_views(name):
    views = VIEW_TRANSFORMS[name]
    every = views.of(COLORED, CLASSES)
    some = views.some(COLORED, CLASSES, views.choose(order(7), views.count))
    assert torch.equal(some.rows, every.rows)
    assert sorted(some.picked.tolist()) == list(range(7 * views.count))
    assert torch.equal(some.labels, every.labels[some.picked])
