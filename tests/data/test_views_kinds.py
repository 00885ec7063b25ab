from itertools import combinations, permutations

import pytest
import torch

from etag.core.errors import EtagError
from etag.data.views import COLORS, IDENTITY, JIGSAW, ROTATIONS, VIEW_TRANSFORMS


def rows_of(views, images):
    """All views, whatever the labels."""
    return views.of(images, torch.zeros(len(images), dtype=torch.long)).rows


# -- jigsaw ----------------------------------------------------------------------------------------

PICTURE = [
    [1, 2, 3, 4],
    [5, 6, 7, 8],
    [9, 10, 11, 12],
    [13, 14, 15, 16],
]


def test_a_jigsaw_moves_quarters_of_an_image():
    found = rows_of(JIGSAW, torch.tensor(PICTURE).view(1, 1, 4, 4)).squeeze(1).tolist()
    assert found == [
        PICTURE,
        [[3, 4, 1, 2], [7, 8, 5, 6], [11, 12, 9, 10], [15, 16, 13, 14]],  # left and right
        [[9, 10, 11, 12], [13, 14, 15, 16], [1, 2, 3, 4], [5, 6, 7, 8]],  # upper and lower
        [[11, 12, 9, 10], [15, 16, 13, 14], [3, 4, 1, 2], [7, 8, 5, 6]],  # both
    ]


def test_no_two_orders_have_a_quarter_in_the_same_place():
    quarters = torch.tensor([[0, 1], [2, 3]]).view(1, 1, 2, 2)
    orders = rows_of(JIGSAW, quarters).flatten(1).tolist()
    assert orders[0] == [0, 1, 2, 3]
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    for one, other in combinations(orders, 2):
        assert all(a != b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("size", "fit"), [(7, 8), (33, 34), (1, 2)])
def test_an_odd_side_can_not_be_halved(size, fit):
    with pytest.raises(EtagError, match=rf"{size} pixels do not allow: set data\.size={fit}, or another"):
        JIGSAW.check(3, size)
    JIGSAW.check(3, fit)
    JIGSAW.check(1, fit)


# -- colors ---------------------------------------------------------------------------------------


def test_colors_are_all_six_orders_of_three_channels_the_image_first():
    image = torch.tensor([10, 20, 30]).view(1, 3, 1, 1).expand(1, 3, 2, 2)
    found = rows_of(COLORS, image)[:, :, 1, 1].tolist()
    assert found[0] == [10, 20, 30]
    assert sorted(map(tuple, found)) == sorted(permutations([10, 20, 30]))


@pytest.mark.parametrize("channels", [1, 4])
def test_other_images_than_those_of_three_channels_have_no_colors(channels):
    with pytest.raises(EtagError, match=rf"needs images of 3 channels, these have {channels}: .*embedding\.views"):
        COLORS.check(channels, 8)
    COLORS.check(3, 7)


def test_a_method_refuses_views_that_its_images_do_not_have(lab):
    with pytest.raises(EtagError, match="'color' needs images of 3 channels, these have 1"):
        lab("etag", {"embedding": {"views": "color"}})
    assert lab("etag", {"embedding": {"views": "jigsaw"}}).method.views is JIGSAW


# -- all kinds -------------------------------------------------------------------------------------

IMAGES = torch.randn(3, 3, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("name", "count"), [("none", 1), ("rotation", 4), ("jigsaw", 4), ("color", 6)])
def test_view_r_of_image_k_is_row_3r_plus_k(name, count):
    views = VIEW_TRANSFORMS[name]
    rows = rows_of(views, IMAGES)
    assert views.count == count
    assert rows.shape == (3 * count, 3, 4, 4)
    assert torch.equal(rows[:3], IMAGES)
    for k in range(3):
        assert torch.equal(rows[k::3], rows_of(views, IMAGES[k : k + 1]))
    assert len(rows.flatten(1).unique(dim=0)) == 3 * count  # no two are alike
    assert rows.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", VIEW_TRANSFORMS)
def test_the_label_of_view_r_is_count_times_y_plus_r(name):
    views, k = VIEW_TRANSFORMS[name], VIEW_TRANSFORMS[name].count
    expected = [k * y + r for r in range(k) for y in (5, 0, 2)]
    assert views.of(IMAGES, torch.tensor([5, 0, 2])).labels.tolist() == expected


def test_images_themselves_and_rotations_fit_any_image():
    for views in (IDENTITY, ROTATIONS):
        views.check(1, 7)
        views.check(3, 8)
