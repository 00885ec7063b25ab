import math

import pytest

from etag.evaluation.intervals import accuracy_interval


@pytest.mark.parametrize(("right", "images"), [(0, 1), (1, 1), (3, 4), (90, 100)])
def test_the_interval_of_wilson_by_hand(right, images):
    z, share = 1.959964, right / images
    center = (share + z**2 / (2 * images)) / (1 + z**2 / images)
    half = z / (1 + z**2 / images) * math.sqrt(share * (1 - share) / images + z**2 / (4 * images**2))
    assert accuracy_interval(right, images) == pytest.approx((center - half, center + half), abs=1e-6)
