from itertools import combinations, permutations

import numpy as np
import pytest
import torch

from etag.core.errors import EtagError
from etag.data.views import COLORS, IDENTITY, JIGSAW, ROTATIONS, VIEW_TRANSFORMS

IMAGES = torch.arange(3 * 2 * 4 * 4, dtype=torch.float32).view(3, 2, 4, 4)
LABELS = torch.tensor([5, 0, 2])


# -- all views -------------------------------------------------------------------------------------


def test_image_k_rotated_r_times_is_row_3r_plus_k():
    result = ROTATIONS.all_views(IMAGES, LABELS)
    assert result.inputs.shape == (12, 2, 4, 4)
    for k in range(3):
        for r in range(4):
            assert np.array_equal(result.inputs[3 * r + k], np.rot90(IMAGES[k].numpy(), r, axes=(1, 2)))


def test_the_label_of_rotation_r_is_4y_plus_r():
    assert ROTATIONS.all_views(IMAGES, LABELS).labels.tolist() == [20, 0, 8, 21, 1, 9, 22, 2, 10, 23, 3, 11]


def test_of_returns_the_images_first_and_uses_all_rows_as_views():
    result = ROTATIONS.all_views(IMAGES, LABELS)
    assert result.image_count == 3
    assert result.selected is None
    assert torch.equal(result.inputs[:3], IMAGES)


def test_views_are_in_channels_last_order():
    assert ROTATIONS.all_views(IMAGES, LABELS).inputs.is_contiguous(memory_format=torch.channels_last)
    chosen = ROTATIONS.choose(torch.arange(3), 2)
    assert ROTATIONS.selected_views(IMAGES, LABELS, chosen).inputs.is_contiguous(memory_format=torch.channels_last)


def test_identity_returns_the_images():
    assert IDENTITY.count == 1
    result = IDENTITY.all_views(IMAGES, LABELS)
    assert torch.equal(result.inputs, IMAGES)
    assert result.image_count == 3
    assert result.labels.tolist() == [5, 0, 2]


@pytest.mark.parametrize("views", [IDENTITY, ROTATIONS], ids=lambda views: views.name)
def test_of_returns_one_label_per_row(views):
    result = views.all_views(IMAGES, torch.zeros(3, dtype=torch.long))
    assert len(result.inputs) == len(result.labels) == 3 * views.count


# -- some views ------------------------------------------------------------------------------------

CHOICES = [(name, number) for name, views in VIEW_TRANSFORMS.items() for number in range(1, views.count + 1)]
COLORED = torch.randn(7, 3, 4, 4, generator=torch.Generator().manual_seed(0))
CLASSES = torch.tensor([4, 0, 2, 2, 1, 0, 3])


def order(rows, seed=0):
    return torch.randperm(rows, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rows", [1, 4, 7, 24, 50])
@pytest.mark.parametrize(("name", "number"), CHOICES)
def test_choose_returns_distinct_views_and_uses_all_equally_often(name, number, rows):
    views = VIEW_TRANSFORMS[name]
    chosen = views.choose(order(rows), number)
    assert chosen.shape == (rows, number)
    assert all(len(set(row)) == number for row in chosen.tolist())
    assert set(chosen.flatten().tolist()) <= set(range(views.count))
    for column in chosen.T:  # also for each column alone
        counts = column.bincount(minlength=views.count)
        assert counts.max() - counts.min() <= 1
    counts = chosen.flatten().bincount(minlength=views.count)
    assert counts.max() - counts.min() <= min(number, views.count - number)
    if rows % views.count == 0:
        assert set(counts.tolist()) == {rows * number // views.count}


def test_choose_depends_on_the_position_of_the_row_only():
    positions = order(50)
    assert torch.equal(ROTATIONS.choose(positions, 2)[10:20], ROTATIONS.choose(positions[10:20], 2))
    assert not torch.equal(ROTATIONS.choose(positions, 1), ROTATIONS.choose(order(50, seed=1), 1))


@pytest.mark.parametrize(("name", "number"), CHOICES)
def test_some_computes_the_chosen_views_and_no_others(name, number):
    views = VIEW_TRANSFORMS[name]
    chosen = views.choose(order(7), number)
    result = views.selected_views(COLORED, CLASSES, chosen)
    assert result.image_count == 7
    assert torch.equal(result.inputs[:7], COLORED)
    assert len(result.selected) == len(result.labels) == 7 * number
    for index, (row, label) in enumerate(zip(result.selected, result.labels, strict=True)):
        k, r = index // number, int(chosen[index // number, index % number])
        assert torch.equal(result.inputs[row], views.transforms[r](COLORED[k : k + 1])[0])
        assert label == views.count * CLASSES[k] + r
    assert len(result.inputs) == 7 + (chosen > 0).sum()


@pytest.mark.parametrize("chosen", [[[0]] * 3, [[3]] * 3, [[2], [0], [2]], [[3, 1], [0, 2], [1, 0]]], ids=str)
def test_some_accepts_any_views_in_any_order(chosen):
    result = ROTATIONS.selected_views(IMAGES, LABELS, torch.tensor(chosen))
    pairs = [(k, r) for k, row in enumerate(chosen) for r in row]
    expected = np.stack([np.rot90(IMAGES[k].numpy(), r, axes=(1, 2)) for k, r in pairs])
    assert np.array_equal(result.inputs[result.selected], expected)
    assert result.labels.tolist() == [4 * [5, 0, 2][k] + r for k, r in pairs]


@pytest.mark.parametrize("name", VIEW_TRANSFORMS)
def test_some_with_all_views_equals_of(name):
    views = VIEW_TRANSFORMS[name]
    every = views.all_views(COLORED, CLASSES)
    some = views.selected_views(COLORED, CLASSES, views.choose(order(7), views.count))
    assert torch.equal(some.inputs, every.inputs)
    assert sorted(some.selected.tolist()) == list(range(7 * views.count))
    assert torch.equal(some.labels, every.labels[some.selected])


def rows_of(views, images):
    """Return the rows of all views of the images."""
    return views.all_views(images, torch.zeros(len(images), dtype=torch.long)).inputs


# -- jigsaw ----------------------------------------------------------------------------------------

PIXELS = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]]


def test_jigsaw_moves_quarters_of_an_image():
    rows = rows_of(JIGSAW, torch.tensor(PIXELS).view(1, 1, 4, 4)).squeeze(1).tolist()
    assert rows == [
        PIXELS,
        [[3, 4, 1, 2], [7, 8, 5, 6], [11, 12, 9, 10], [15, 16, 13, 14]],  # left and right
        [[9, 10, 11, 12], [13, 14, 15, 16], [1, 2, 3, 4], [5, 6, 7, 8]],  # upper and lower
        [[11, 12, 9, 10], [15, 16, 13, 14], [3, 4, 1, 2], [7, 8, 5, 6]],  # both
    ]


def test_no_two_jigsaw_orders_have_a_quarter_in_the_same_place():
    quarters = torch.tensor([[0, 1], [2, 3]]).view(1, 1, 2, 2)
    orders = rows_of(JIGSAW, quarters).flatten(1).tolist()
    assert orders[0] == [0, 1, 2, 3]
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    for one, other in combinations(orders, 2):
        assert all(a != b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("size", "fit"), [(7, 8), (33, 34), (1, 2)])
def test_jigsaw_with_an_odd_side_is_an_error(size, fit):
    with pytest.raises(EtagError, match=rf"it is {size} pixels: set data\.size={fit}, or choose another"):
        JIGSAW.check(3, size)
    JIGSAW.check(3, fit)
    JIGSAW.check(1, fit)


# -- colors ----------------------------------------------------------------------------------------


def test_colors_are_all_six_orders_of_three_channels_with_the_image_first():
    image = torch.tensor([10, 20, 30]).view(1, 3, 1, 1).expand(1, 3, 2, 2)
    rows = rows_of(COLORS, image)[:, :, 1, 1].tolist()
    assert rows[0] == [10, 20, 30]
    assert sorted(map(tuple, rows)) == sorted(permutations([10, 20, 30]))


@pytest.mark.parametrize("channels", [1, 4])
def test_colors_of_images_without_three_channels_are_an_error(channels):
    with pytest.raises(EtagError, match=rf"need images with 3 channels, but these have {channels}: .*embedding\.views"):
        COLORS.check(channels, 8)
    COLORS.check(3, 7)


def test_a_method_checks_that_its_images_can_have_the_views(lab):
    with pytest.raises(EtagError, match="'color' need images with 3 channels, but these have 1"):
        lab("etag", {"embedding": {"views": "color"}})
    assert lab("etag", {"embedding": {"views": "jigsaw"}}).method.transforms is JIGSAW


# -- every set of views ----------------------------------------------------------------------------

COLOR_IMAGES = torch.randn(3, 3, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("name", "count"), [("none", 1), ("rotation", 4), ("jigsaw", 4), ("color", 6)])
def test_view_r_of_image_k_is_row_3r_plus_k(name, count):
    views = VIEW_TRANSFORMS[name]
    rows = rows_of(views, COLOR_IMAGES)
    assert views.count == count
    assert rows.shape == (3 * count, 3, 4, 4)
    assert torch.equal(rows[:3], COLOR_IMAGES)
    for k in range(3):
        assert torch.equal(rows[k::3], rows_of(views, COLOR_IMAGES[k : k + 1]))
    assert len(rows.flatten(1).unique(dim=0)) == 3 * count  # no two are equal
    assert rows.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", VIEW_TRANSFORMS)
def test_the_label_of_view_r_is_count_times_y_plus_r(name):
    views, k = VIEW_TRANSFORMS[name], VIEW_TRANSFORMS[name].count
    expected = [k * y + r for r in range(k) for y in (5, 0, 2)]
    assert views.all_views(COLOR_IMAGES, torch.tensor([5, 0, 2])).labels.tolist() == expected


def test_identity_and_rotations_accept_any_image():
    for views in (IDENTITY, ROTATIONS):
        views.check(1, 7)
        views.check(3, 8)
