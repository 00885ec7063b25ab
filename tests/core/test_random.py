import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from etag.core.random import Draws, Placement, Stream


def numbers(stream, *parts):
    return torch.randn(8, generator=stream.torch_generator(*parts))


def test_the_same_key_gives_the_same_numbers():
    assert torch.equal(numbers(Stream.root(3).child("solver", 1)), numbers(Stream.root(3).child("solver", 1)))


def test_a_name_can_be_given_at_once_or_in_steps():
    whole = numbers(Stream.root(3), "task", 1, "solver")
    assert torch.equal(whole, numbers(Stream.root(3).child("task").child(1), "solver"))


def test_every_part_of_the_key_counts():
    keys = [("solver", 1, 2), ("generator", 1, 2), ("solver", 2, 2), ("solver", 1, 3), ("solver", 2, 1), ("solver", 12)]
    keys += [("solver", "1", 2), ("solver",), ()]
    drawn = [tuple(numbers(Stream.root(seed).child(*key)).tolist()) for key in keys for seed in (0, 1)]
    assert len(set(drawn)) == len(drawn)


def test_drawing_from_one_child_does_not_change_another():
    stream = Stream.root(0)
    alone = numbers(stream.child("b"))
    for purpose in ("a", "c"):
        torch.randn(1000, generator=stream.torch_generator(purpose))
    assert torch.equal(numbers(stream.child("b")), alone)


def test_training_does_not_use_global_random_generators(lab):
    def states():
        return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()  # noqa: NPY002

    lab("etag")  # some libraries draw random numbers when they are first imported
    before = states()
    laboratory = lab("etag")
    laboratory.learn(0, 1)
    for work in laboratory.works(1).values():
        assert len(list(work.batches.epoch(0))) == len(work.batches)
    assert states() == before


@given(rows=st.integers(0, 300), world=st.integers(1, 9))
def test_shares_partition_the_rows_evenly(rows, world):
    shares = [Placement(rank=rank, world=world).own_rows(rows) for rank in range(world)]
    assert [row for share in shares for row in range(rows)[share]] == list(range(rows))
    sizes = [share.stop - share.start for share in shares]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    "draw",
    [
        lambda draws, rows: draws.normal("noise", rows, 4),
        lambda draws, rows: draws.integers("labels", 2, 9, rows),
        lambda draws, rows: draws.places_in_shuffle("views", rows),
    ],
    ids=["normal", "integers", "order"],
)
@pytest.mark.parametrize("rows", [12, 7])
def test_draws_of_several_processes_equal_those_of_one(draw, world, rows):
    stream = Stream.root(0).child("step", 5)
    several = [draw(Draws(stream, Placement(rank=rank, world=world)), rows) for rank in range(world)]
    assert torch.equal(torch.cat(several), draw(Draws(stream), rows))


def test_draws_differ_by_purpose_and_repeat_within_one():
    draws = Draws(Stream.root(0))
    assert torch.equal(draws.normal("codes", 4, 2), draws.normal("codes", 4, 2))
    assert not torch.equal(draws.normal("codes", 4, 2), draws.normal("noise", 4, 2))


def test_integers_cover_exactly_their_range():
    assert set(Draws(Stream.root(0)).integers("labels", 3, 6, 200).tolist()) == {3, 4, 5}


@given(rows=st.integers(0, 300))
def test_ranks_are_every_number_once(rows):
    assert sorted(Draws(Stream.root(0)).places_in_shuffle("views", rows).tolist()) == list(range(rows))


def test_ranks_are_random_and_differs_by_purpose_and_step():
    stream = Stream.root(0)
    drawn = [
        Draws(stream.child(step)).places_in_shuffle(purpose, 40).tolist()
        for step in (0, 1)
        for purpose in ("views", "x")
    ]
    assert list(range(40)) not in drawn
    assert len({tuple(order) for order in drawn}) == 4
    assert Draws(stream.child(0)).places_in_shuffle("views", 40).tolist() == drawn[0]


def test_order_stays_on_the_cpu():
    placement = Placement(torch.device("meta"), rank=1, world=2)
    draws = Draws(Stream.root(0), placement)
    assert draws.places_in_shuffle("views", 8).device.type == "cpu"
    assert draws.integers("labels", 0, 3, 8).device.type == "meta"
