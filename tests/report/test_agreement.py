import math
from itertools import combinations
from statistics import fmean, stdev

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


def by_seed(*rows):
    return [dict(enumerate(row)) for row in rows]


def test_seeds_that_agree_give_an_interval_of_one_point():
    found = agreement(by_seed([1.0, 1.1], [2.0, 2.1], [3.0, 3.1]), [10, 20, 30])
    assert (found.tau, found.methods, found.seeds, found.over_seeds) == (1, 3, 2, (1, 1))
    assert found.over_methods == pytest.approx((1, 1)), "any choice of these methods is in the paper's order"


def test_the_interval_over_seeds_is_students():
    ours = by_seed([1.0, 2.5, 0.5], [2.0, 1.0, 3.5], [3.0, 2.0, 4.0])
    found = agreement(ours, [10, 20, 30])
    taus = [kendall([values[seed] for values in ours], [10, 20, 30]) for seed in range(3)]
    margin = 4.302653 * stdev(taus) / math.sqrt(3)
    assert found.by_seed.mean == pytest.approx(fmean(taus))
    assert found.over_seeds == pytest.approx((max(-1, fmean(taus) - margin), min(1, fmean(taus) + margin)))


def test_only_seeds_that_all_methods_have_count():
    found = agreement([{0: 1.0, 1: 1.0, 2: 9.0}, {0: 2.0, 1: 2.0}, {1: 3.0, 0: 3.0, 5: 0.0}], [1, 2, 3])
    assert (found.seeds, found.by_seed.mean) == (2, 1)
    assert found.tau < 1, "the means are over all seeds of each method"


def test_methods_out_of_order_widen_the_interval_over_methods_the_same_way_each_time():
    ours = by_seed([1.0], [4.0], [3.0], [2.0], [5.0])
    found = agreement(ours, [10, 20, 30, 40, 50])
    assert found == agreement(ours, [10, 20, 30, 40, 50])
    low, high = found.over_methods
    assert low < 0 < found.tau < high == 1


def test_one_seed_each_has_no_interval_over_seeds():
    assert agreement(by_seed([1.0], [2.0]), [5, 4]).over_seeds is None


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
