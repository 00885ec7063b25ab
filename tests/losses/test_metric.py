import math

import pytest
import torch

from etag.core.random import Stream
from etag.losses.metric import margin_ranking, nca_loss, nca_loss_as_released


def numbers(*shape, key="a", scale=1.0):
    return scale * torch.randn(*shape, dtype=torch.float64, generator=Stream.root(0).torch_generator(key, *shape))


LABELS = torch.tensor([0, 1, 4, 2, 5, 0])  # three old classes, three new ones

# -- Lucir's margin ranking ------------------------------------------------------------------------


def naive_ranking(rows, labels, old, margin, hardest):
    hinges = []
    for row, label in zip(rows, labels, strict=True):
        if label < old:
            rivals = sorted(row[old:], reverse=True)[:hardest]
            hinges += [max(0.0, margin - row[label] + rival) for rival in rivals]
    return sum(hinges) / len(hinges)


@pytest.mark.parametrize("hardest", [1, 2, 3, 10])  # there are three
def test_margin_ranking_compares_old_images_with_their_most_similar_new_classes(naive, hardest):
    cosines = numbers(6, 6).tanh()
    expected = naive_ranking(naive.rows(cosines), LABELS.tolist(), 3, 0.5, hardest)
    result = margin_ranking(cosines, LABELS, 3, 0.5, hardest)
    assert result.item() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: margin_ranking(x, LABELS, 3, 0.5, hardest), cosines.requires_grad_())


def test_margin_ranking_computed_by_hand():
    cosines = torch.tensor([[0.9, 0.0, 0.7, 0.1, 0.5], [0.2, 0.3, 0.9, 0.9, 0.9]], requires_grad=True)
    loss = margin_ranking(cosines, torch.tensor([0, 2]), old=2)  # margin 0.5, two classes
    loss.backward()
    assert loss.item() == pytest.approx(((0.5 - 0.9 + 0.7) + (0.5 - 0.9 + 0.5)) / 2)
    assert cosines.grad.tolist() == [[-1, 0, 0.5, 0, 0.5], [0] * 5]  # the second image is of a new class


def test_margin_ranking_is_zero_beyond_the_margin():
    cosines = torch.tensor([[0.9, 0.0, 0.3, 0.39]], requires_grad=True)
    loss = margin_ranking(cosines, torch.tensor([0]), old=2)
    loss.backward()
    assert loss == 0
    assert torch.count_nonzero(cosines.grad) == 0


def test_margin_ranking_is_zero_without_old_images():
    cosines = numbers(3, 6).requires_grad_()
    loss = margin_ranking(cosines, torch.tensor([3, 4, 5]), old=3)
    loss.backward()
    assert loss == 0
    assert torch.count_nonzero(cosines.grad) == 0  # not NaN from 0 / 0


# -- PODNet's NCA ----------------------------------------------------------------------------------


def naive_neighborhood(rows, labels, scale, margin):
    total = 0.0
    for row, label in zip(rows, labels, strict=True):
        others = math.log(sum(math.exp(value) for index, value in enumerate(row) if index != label))
        total += max(0.0, others - (row[label] - scale * margin))
    return total / len(rows)


@pytest.mark.parametrize("margin", [0.0, 0.6])
def test_nca_loss_compares_the_right_class_minus_a_margin_with_all_others(naive, margin):
    scaled, scale = numbers(6, 6, scale=4.0), torch.tensor(3.0, dtype=torch.float64)
    expected = naive_neighborhood(naive.rows(scaled), LABELS.tolist(), 3.0, margin)
    assert nca_loss(scaled, LABELS, scale, margin).item() == pytest.approx(expected, rel=1e-12)
    inputs = (scaled.requires_grad_(), scale.requires_grad_())
    assert torch.autograd.gradcheck(lambda x, s: nca_loss(x, LABELS, s, margin), inputs)


def test_the_default_margin_of_nca_loss_is_that_of_the_paper():
    scaled, scale = numbers(6, 6), torch.tensor(3.0).double()
    assert nca_loss(scaled, LABELS, scale) == nca_loss(scaled, LABELS, scale, 0.6)


def test_nca_loss_subtracts_the_scaled_margin_from_the_right_class_only():
    scaled, scale = torch.zeros(2, 4), torch.tensor(3.0, requires_grad=True)
    loss = nca_loss(scaled, torch.tensor([1, 2]), scale, 0.6)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(3) + 3 * 0.6)  # subtracted from all classes, it would cancel
    assert scale.grad.item() == pytest.approx(0.6)


def test_nca_loss_is_zero_beyond_the_margin():
    scaled = torch.tensor([[5.0, 0.0, 0.0], [0.0, 0.0, 1.0]], requires_grad=True)
    loss = nca_loss(scaled, torch.tensor([0, 2]), torch.tensor(1.0))
    loss.backward()
    assert loss.item() == pytest.approx((0 + math.log(2) - 0.4) / 2)
    assert torch.count_nonzero(scaled.grad[0]) == 0
    torch.testing.assert_close(scaled.grad[1], torch.tensor([0.25, 0.25, -0.5]))


def test_nca_loss_is_zero_for_certain_predictions():
    certain = torch.full((6, 6), -1e4).scatter(1, LABELS[:, None], 1e4)
    assert nca_loss(certain, LABELS, torch.tensor(1.0)) == 0


def test_nca_loss_of_a_single_class_is_zero():
    single = numbers(3, 1).requires_grad_()
    loss = nca_loss(single, torch.zeros(3, dtype=torch.long), torch.tensor(1.0))
    loss.backward()
    assert loss == 0
    assert torch.count_nonzero(single.grad) == 0  # not NaN from inf - inf


# -- PODNet's NCA as released ----------------------------------------------------------------------


def naive_release(rows, labels, scale, margin):
    """As released: subtract the margin from all similarities, then the largest; the right class counts as exp(0)."""
    total = 0.0
    for row, label in zip(rows, labels, strict=True):
        scaled = [scale * (value - margin) for value in row]
        shifted = [value - max(scaled) for value in scaled]
        left = [0.0 if index == label else value for index, value in enumerate(shifted)]
        total -= shifted[label] - math.log(sum(math.exp(value) for value in left))
    return total / len(rows)


@pytest.mark.parametrize("margin", [0.0, 0.6])
def test_the_released_nca_loss_cancels_its_margin_and_adds_one_to_the_denominator(naive, margin):
    similarities = numbers(6, 6)
    expected = naive_release(naive.rows(similarities), LABELS.tolist(), 3.0, margin)
    result = nca_loss_as_released(3 * similarities, LABELS)  # it has no margin argument
    assert result.item() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: nca_loss_as_released(x, LABELS), similarities.requires_grad_())


def test_the_released_nca_loss_of_equal_similarities_computed_by_hand():
    similarities = torch.full((1, 4), 2.5, requires_grad=True)
    loss = nca_loss_as_released(similarities, torch.tensor([1]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(1 + 3))  # the others single would give log 3
    gradient = similarities.grad[0]  # 1/4 for every other class; the largest, one of them all, gets 1/4 more
    assert gradient.sum().item() == pytest.approx(0)
    assert gradient[1] < 0
    assert (gradient[[0, 2, 3]] >= 0.25).all()


def test_the_released_nca_loss_is_zero_for_certain_predictions():
    certain = torch.full((6, 6), -1e4).scatter(1, LABELS[:, None], 1e4).requires_grad_()
    loss = nca_loss_as_released(certain, LABELS)
    loss.backward()
    assert loss == 0
    assert torch.count_nonzero(certain.grad) == 0


def test_the_two_nca_losses_differ():
    scaled = numbers(6, 6)
    assert nca_loss_as_released(scaled, LABELS) != nca_loss(scaled, LABELS, torch.tensor(1.0).double(), 0.0)
