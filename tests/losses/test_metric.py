import math

import pytest
import torch

from etag.core.random import Stream
from etag.losses.metric import margin_ranking, nca_loss, nca_loss_as_released


def numbers(*shape, key="a", scale=1.0):
    return scale * torch.randn(*shape, dtype=torch.float64, generator=Stream.root(0).generator(key, *shape))


LABELS = torch.tensor([0, 1, 4, 2, 5, 0])  # of three old classes and three new ones

# -- Lucir's ranking -------------------------------------------------------------------------------


def naive_ranking(rows, labels, old, margin, hardest):
    hinges = []
    for row, label in zip(rows, labels, strict=True):
        if label < old:
            rivals = sorted(row[old:], reverse=True)[:hardest]
            hinges += [max(0.0, margin - row[label] + rival) for rival in rivals]
    return sum(hinges) / len(hinges)


@pytest.mark.parametrize("hardest", [1, 2, 3, 10])  # there are three
def test_old_images_are_ranked_above_their_nearest_new_classes(naive, hardest):
    cosines = numbers(6, 6).tanh()
    expected = naive_ranking(naive.rows(cosines), LABELS.tolist(), 3, 0.5, hardest)
    found = margin_ranking(cosines, LABELS, 3, 0.5, hardest)
    assert found.item() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: margin_ranking(x, LABELS, 3, 0.5, hardest), cosines.requires_grad_())


def test_the_ranking_by_hand():
    cosines = torch.tensor([[0.9, 0.0, 0.7, 0.1, 0.5], [0.2, 0.3, 0.9, 0.9, 0.9]], requires_grad=True)
    loss = margin_ranking(cosines, torch.tensor([0, 2]), old=2)  # margin 0.5, two classes
    loss.backward()
    assert loss.item() == pytest.approx(((0.5 - 0.9 + 0.7) + (0.5 - 0.9 + 0.5)) / 2)
    assert cosines.grad.tolist() == [[-1, 0, 0.5, 0, 0.5], [0] * 5]  # the second image is of a new class


def test_what_is_above_by_the_margin_is_left_alone():
    cosines = torch.tensor([[0.9, 0.0, 0.3, 0.39]], requires_grad=True)
    loss = margin_ranking(cosines, torch.tensor([0]), old=2)
    loss.backward()
    assert loss == 0
    assert torch.count_nonzero(cosines.grad) == 0


def test_there_is_nothing_to_rank_without_old_images():
    cosines = numbers(3, 6).requires_grad_()
    loss = margin_ranking(cosines, torch.tensor([3, 4, 5]), old=3)
    loss.backward()
    assert loss == 0
    assert torch.count_nonzero(cosines.grad) == 0  # not NaN, which 0 / 0 would be


# -- PODNet's NCA ----------------------------------------------------------------------------------


def naive_neighborhood(rows, labels, scale, margin):
    total = 0.0
    for row, label in zip(rows, labels, strict=True):
        others = math.log(sum(math.exp(value) for place, value in enumerate(row) if place != label))
        total += max(0.0, others - (row[label] - scale * margin))
    return total / len(rows)


@pytest.mark.parametrize("margin", [0.0, 0.6])
def test_the_positive_less_a_margin_is_set_against_all_others(naive, margin):
    scaled, scale = numbers(6, 6, scale=4.0), torch.tensor(3.0, dtype=torch.float64)
    expected = naive_neighborhood(naive.rows(scaled), LABELS.tolist(), 3.0, margin)
    assert nca_loss(scaled, LABELS, scale, margin).item() == pytest.approx(expected, rel=1e-12)
    inputs = (scaled.requires_grad_(), scale.requires_grad_())
    assert torch.autograd.gradcheck(lambda x, s: nca_loss(x, LABELS, s, margin), inputs)


def test_the_margin_is_the_papers_by_default():
    scaled, scale = numbers(6, 6), torch.tensor(3.0).double()
    assert nca_loss(scaled, LABELS, scale) == nca_loss(scaled, LABELS, scale, 0.6)


def test_the_margin_is_taken_from_the_positive_only_and_is_scaled():
    scaled, scale = torch.zeros(2, 4), torch.tensor(3.0, requires_grad=True)
    loss = nca_loss(scaled, torch.tensor([1, 2]), scale, 0.6)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(3) + 3 * 0.6)  # taken from all, it would cancel
    assert scale.grad.item() == pytest.approx(0.6)


def test_what_is_won_by_the_margin_is_not_pushed_further():
    scaled = torch.tensor([[5.0, 0.0, 0.0], [0.0, 0.0, 1.0]], requires_grad=True)
    loss = nca_loss(scaled, torch.tensor([0, 2]), torch.tensor(1.0))
    loss.backward()
    assert loss.item() == pytest.approx((0 + math.log(2) - 0.4) / 2)
    assert torch.count_nonzero(scaled.grad[0]) == 0
    torch.testing.assert_close(scaled.grad[1], torch.tensor([0.25, 0.25, -0.5]))


def test_the_certain_cost_nothing():
    certain = torch.full((6, 6), -1e4).scatter(1, LABELS[:, None], 1e4)
    assert nca_loss(certain, LABELS, torch.tensor(1.0)) == 0


def test_one_class_alone_costs_nothing():
    alone = numbers(3, 1).requires_grad_()
    loss = nca_loss(alone, torch.zeros(3, dtype=torch.long), torch.tensor(1.0))
    loss.backward()
    assert loss == 0
    assert torch.count_nonzero(alone.grad) == 0  # not NaN, which inf - inf would be


# -- and as released -------------------------------------------------------------------------------


def naive_release(rows, labels, scale, margin):
    """From similarities: the margin from each of them, the largest subtracted, the positive's place at exp(0)."""
    total = 0.0
    for row, label in zip(rows, labels, strict=True):
        scaled = [scale * (value - margin) for value in row]
        shifted = [value - max(scaled) for value in scaled]
        left = [0.0 if place == label else value for place, value in enumerate(shifted)]
        total -= shifted[label] - math.log(sum(math.exp(value) for value in left))
    return total / len(rows)


@pytest.mark.parametrize("margin", [0.0, 0.6])
def test_the_release_loses_its_margin_and_adds_one_to_the_denominator(naive, margin):
    similarities = numbers(6, 6)
    expected = naive_release(naive.rows(similarities), LABELS.tolist(), 3.0, margin)
    found = nca_loss_as_released(3 * similarities, LABELS)  # it is not told of a margin
    assert found.item() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: nca_loss_as_released(x, LABELS), similarities.requires_grad_())


def test_the_release_on_equal_similarities_by_hand():
    similarities = torch.full((1, 4), 2.5, requires_grad=True)
    loss = nca_loss_as_released(similarities, torch.tensor([1]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(1 + 3))  # the others alone would make log 3
    gradient = similarities.grad[0]  # 1/4 for every other class; the largest, one of them all, gets 1/4 more
    assert gradient.sum().item() == pytest.approx(0)
    assert gradient[1] < 0
    assert (gradient[[0, 2, 3]] >= 0.25).all()


def test_the_releases_term_for_the_certain_is_zero_too():
    certain = torch.full((6, 6), -1e4).scatter(1, LABELS[:, None], 1e4).requires_grad_()
    loss = nca_loss_as_released(certain, LABELS)
    loss.backward()
    assert loss == 0
    assert torch.count_nonzero(certain.grad) == 0


def test_the_two_forms_differ():
    scaled = numbers(6, 6)
    assert nca_loss_as_released(scaled, LABELS) != nca_loss(scaled, LABELS, torch.tensor(1.0).double(), 0.0)
