import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etag.report.agreement import agreement, kendall, paired

FEW = st.integers(0, 4)  # so that there are ties


def naive_kendall(left, right):
    """Pair by pair: tau-b = (same - opposite) / sqrt(untied left * untied right)."""
    same = opposite = untied_left = untied_right = 0
    for (a, b), (c, d) in combinations(zip(left, right, strict=True), 2):
        untied_left += a != c
        untied_right += b != d
        product = (a - c) * (b - d)
        same += product > 0
        opposite += product < 0
    untied = math.sqrt(untied_left * untied_right)
    return (same - opposite) / untied if untied else math.nan


@given(st.lists(st.tuples(FEW, FEW), min_size=1, max_size=12))
def test_kendall_is_that_of_a_naive_count(pairs):
    left, right = zip(*pairs, strict=True)
    assert kendall(left, right) == pytest.approx(naive_kendall(left, right), nan_ok=True)


def test_kendall_of_known_rankings():
    assert kendall([1, 2, 3], [10, 20, 30]) == 1
    assert kendall([1, 2, 3], [3, 2, 1]) == -1
    assert kendall([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(4 / 6)
    assert kendall([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / math.sqrt(2 * 3))


def test_seeds_that_agree_give_an_interval_of_one_point():
    found = agreement([[1.0, 1.1], [2.0, 2.1], [3.0, 3.1]], [10, 20, 30])
    assert (found.tau, found.methods, found.interval) == (1, 3, (1, 1))


def test_seeds_that_differ_widen_the_interval_the_same_way_each_time():
    ours = [[1.0, 2.5, 0.5], [2.0, 1.0, 3.5], [3.0, 0.0, 4.0]]
    found = agreement(ours, [10, 20, 30])
    assert found == agreement(ours, [10, 20, 30])
    low, high = found.interval
    assert low < found.tau <= high == 1


def test_one_seed_each_has_no_interval():
    assert agreement([[1.0], [2.0]], [5, 4]).interval is None


def test_differences_are_taken_over_shared_seeds():
    found = paired({0: 50.0, 1: 60.0, 2: 73.0, 5: 0.0}, {2: 70.0, 0: 49.0, 1: 58.0, 9: 1.0})
    assert found.seeds == [0, 1, 2]
    assert found.difference.mean == pytest.approx(2)  # of 1, 2, 3
    assert found.difference.deviation == pytest.approx(1)
    assert found.margin == pytest.approx(4.302653 / math.sqrt(3))


def test_one_shared_seed_has_no_margin_and_none_no_difference():
    assert paired({0: 2.0}, {0: 1.0, 1: 5.0}).margin is None
    assert paired({0: 2.0}, {1: 1.0}) is None


def test_a_difference_is_more_than_chance_only_if_its_interval_excludes_zero():
    assert paired({0: 5.0, 1: 6.0, 2: 7.0}, {0: 1.0, 1: 2.0, 2: 2.0}).above_zero
    assert not paired({0: 5.0, 1: 6.0}, {0: 1.0, 1: 5.0}).above_zero
    assert not paired({0: 5.0}, {0: 1.0}).above_zero, "one seed has no interval"
    assert not paired({0: 1.0, 1: 2.0, 2: 2.0}, {0: 5.0, 1: 6.0, 2: 7.0}).above_zero


@pytest.mark.parametrize(("seeds", "quantile"), [(2, 12.706), (3, 4.303), (11, 2.228), (12, 2.201), (31, 2.042)])
def test_the_margin_uses_students_quantile(seeds, quantile):
    ours = {seed: float(seed % 2) for seed in range(seeds)}
    found = paired(ours, dict.fromkeys(ours, 0.0))
    assert found.margin * math.sqrt(seeds) / found.difference.deviation == pytest.approx(quantile, abs=6e-4)
    assert found.interval == pytest.approx((found.difference.mean - found.margin, found.difference.mean + found.margin))
