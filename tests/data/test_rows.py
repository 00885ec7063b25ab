import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from etag.data.rows import drawn_rows_per_class, first_rows_per_class, hold_out_rows, pick_rows

# -- hold_out_rows ---------------------------------------------------------------------------------


def test_hold_out_rows_takes_every_fifth_row_of_each_class():
    labels = torch.tensor([0, 1] * 6)
    train, held_out = hold_out_rows(labels)
    assert held_out.tolist() == [8, 9]
    assert train.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 10, 11]


@pytest.mark.parametrize(
    ("count", "held_out"), [(0, []), (1, []), (2, [1]), (4, [3]), (5, [4]), (9, [4]), (10, [4, 9])]
)
def test_hold_out_rows_takes_the_last_row_of_a_small_class_but_never_the_only_one(count, held_out):
    train, test = hold_out_rows(torch.zeros(count, dtype=torch.long))
    assert test.tolist() == held_out
    assert train.tolist() == [row for row in range(count) if row not in held_out]


@given(labels=st.lists(st.integers(0, 4), max_size=60), every=st.integers(2, 7))
def test_hold_out_rows_equals_a_naive_loop(labels, every):
    train, held_out = hold_out_rows(torch.tensor(labels, dtype=torch.long), every)
    expected = []
    for label in set(labels):
        rows = [row for row, value in enumerate(labels) if value == label]
        expected += rows[every - 1 :: every] or rows[1:][-1:]
    assert held_out.tolist() == sorted(expected)
    assert sorted(train.tolist() + held_out.tolist()) == list(range(len(labels)))


# -- first_rows_per_class --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "rows"), [(1, [0, 1, 3]), (2, [0, 1, 2, 3, 5]), (3, range(6)), (100, range(6)), (None, range(6))]
)
def test_first_rows_per_class_returns_the_first_rows_of_each_class(count, rows):
    labels = torch.tensor([1, 0, 1, 2, 1, 0])
    assert first_rows_per_class(labels, count).tolist() == list(rows)


@given(labels=st.lists(st.integers(0, 6), max_size=40), count=st.integers(1, 5))
def test_first_rows_per_class_equals_a_naive_count(labels, count):
    expected = [row for row, label in enumerate(labels) if labels[:row].count(label) < count]
    assert first_rows_per_class(torch.tensor(labels, dtype=torch.long), count).tolist() == expected


def test_drawn_rows_are_as_many_of_each_class_and_depend_on_the_generator():
    labels = torch.arange(3).repeat(20)
    drawn = [drawn_rows_per_class(labels, 5, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    for rows in drawn:
        assert rows.tolist() == sorted(set(rows.tolist()))
        assert labels[rows].bincount().tolist() == [5, 5, 5]
    everything = drawn_rows_per_class(labels, None, torch.Generator().manual_seed(0))
    assert torch.equal(everything, torch.arange(60))


LABELS = torch.tensor([2, 0, 1, 0, 2, 2, 0, 1, 1, 2])


@pytest.mark.parametrize(("limit", "each"), [(3, 1), (6, 2), (8, 2), (9, 3)])
def test_as_many_rows_of_each_class_as_the_limit_allows(limit, each):
    rows = pick_rows(LABELS, limit)
    assert len(rows) <= limit
    for label in range(3):
        of_class = [row for row, y in enumerate(LABELS.tolist()) if y == label]
        assert [row for row in rows.tolist() if LABELS[row] == label] == of_class[:each]
