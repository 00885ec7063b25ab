import numpy as np
import pytest
import torch

from etag.data.views import IDENTITY, ROTATIONS

IMAGES = torch.arange(3 * 2 * 4 * 4, dtype=torch.float32).view(3, 2, 4, 4)


def test_image_k_turned_r_times_is_row_4k_plus_r():
    rows = ROTATIONS.of(IMAGES)
    assert rows.shape == (12, 2, 4, 4)
    for k in range(3):
        for r in range(4):
            assert np.array_equal(rows[4 * k + r], np.rot90(IMAGES[k].numpy(), r, axes=(1, 2)))


def test_its_label_is_4y_plus_r():
    labels = torch.tensor([5, 0, 2])
    assert ROTATIONS.labels(labels).tolist() == [20, 21, 22, 23, 0, 1, 2, 3, 8, 9, 10, 11]


def test_every_fourth_row_is_the_image_itself():
    assert torch.equal(ROTATIONS.of(IMAGES)[0::4], IMAGES)


def test_views_are_laid_out_channels_last():
    assert ROTATIONS.of(IMAGES).is_contiguous(memory_format=torch.channels_last)


def test_no_views_are_the_images():
    assert IDENTITY.count == 1
    assert torch.equal(IDENTITY.of(IMAGES), IMAGES)
    assert IDENTITY.labels(torch.tensor([3, 1])).tolist() == [3, 1]


@pytest.mark.parametrize("views", [IDENTITY, ROTATIONS], ids=lambda views: views.name)
def test_there_are_as_many_rows_as_labels(views):
    assert len(views.of(IMAGES)) == len(views.labels(torch.zeros(3, dtype=torch.long))) == 3 * views.count
