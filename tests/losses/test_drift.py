"""LDC and EFC: how features move, against plain Python and NumPy in float64."""

import math

import numpy as np
import pytest
import torch

from etag.core.random import Stream
from etag.losses.drift import (
    balanced_cross_entropy,
    consolidation_penalty,
    empirical_feature_matrix,
    map_error,
    weighted_drift,
)


def numbers(*shape, key="a", scale=1.0):
    return scale * torch.randn(*shape, dtype=torch.float64, generator=Stream.root(0).torch_generator(key, *shape))


def positive(size, key="m"):
    """A symmetric matrix without negative eigenvalues."""
    root = numbers(size, size, key=key)
    return root @ root.T


# -- LDC: the error of the map -------------------------------------------------------------------------


def test_map_error_is_the_mean_of_all_squared_differences():
    mapped, target = numbers(5, 3), numbers(5, 3, key="b")
    pairs = zip(mapped.flatten().tolist(), target.flatten().tolist(), strict=True)
    assert map_error(mapped, target).item() == pytest.approx(sum((a - b) ** 2 for a, b in pairs) / 15, rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: map_error(x, target), numbers(5, 3).requires_grad_())


def test_map_error_and_its_gradient_are_zero_for_equal_features():
    mapped = numbers(5, 3).requires_grad_()
    loss = map_error(mapped, mapped.detach().clone())
    loss.backward()
    assert loss == 0
    assert torch.count_nonzero(mapped.grad) == 0


def test_map_error_of_features_that_are_all_one_off_is_one_whatever_their_size():
    for shape in ((2, 3), (50, 512)):
        assert map_error(numbers(*shape), numbers(*shape) + 1).item() == pytest.approx(1)


# -- EFC: the matrix -----------------------------------------------------------------------------------


def naive_matrix(features, weight, bias):
    """The mean over images of sum_c p_c g_c g_c', where g_c is the gradient of log p_c with respect to the feature: the
    definition of the matrix, one class after another, with gradients by autograd."""
    total = np.zeros((features.shape[1],) * 2)
    for row in features:
        row = row.clone().requires_grad_()
        log_p = (row @ weight.T + bias).log_softmax(0)
        for value in log_p:
            (gradient,) = torch.autograd.grad(value, row, retain_graph=True)
            total += math.exp(value.item()) * np.outer(gradient, gradient)
    return total / len(features)


def test_the_matrix_is_the_fisher_information_of_the_feature():
    features, weight, bias = numbers(6, 4), numbers(3, 4, key="w"), numbers(3, key="b")
    found = empirical_feature_matrix(features @ weight.T + bias, weight)
    np.testing.assert_allclose(found, naive_matrix(features, weight, bias), rtol=1e-10, atol=1e-12)


def test_the_matrix_says_to_second_order_how_far_the_outputs_move():
    feature, weight, step = numbers(1, 4), numbers(3, 4, key="w"), 1e-3 * numbers(1, 4, key="s")
    before, after = ((f @ weight.T).log_softmax(1) for f in (feature, feature + step))
    divergence = (before.exp() * (before - after)).sum().item()
    matrix = empirical_feature_matrix(feature @ weight.T, weight)
    assert divergence == pytest.approx((step @ matrix @ step.T).item() / 2, rel=1e-2)


def test_the_matrix_is_zero_where_the_outputs_cannot_change():
    weight = numbers(3, 4, key="w")
    weight[:, 2] = 0  # nobody reads the third number
    matrix = empirical_feature_matrix(numbers(6, 4) @ weight.T, weight)
    assert torch.count_nonzero(matrix[2]) == torch.count_nonzero(matrix[:, 2]) == 0
    same = numbers(1, 4, key="w").expand(3, 4)  # all classes have the same row
    assert empirical_feature_matrix(numbers(6, 4) @ same.T, same).abs().max() < 1e-15
    certain = torch.tensor([[1000.0, 0, 0]], dtype=torch.float64)
    assert empirical_feature_matrix(certain, weight).abs().max() < 1e-15


def test_the_scale_of_the_matrix_is_that_of_the_squared_weights_and_not_of_the_number_of_images():
    logits, weight = torch.zeros(4, 2, dtype=torch.float64), torch.tensor([[1.0, 0], [0, 1]], dtype=torch.float64)
    expected = torch.tensor([[0.25, -0.25], [-0.25, 0.25]], dtype=torch.float64)  # p = 1/2: diag(p) - p p'
    torch.testing.assert_close(empirical_feature_matrix(logits, weight), expected)
    torch.testing.assert_close(empirical_feature_matrix(logits.repeat(7, 1), 3 * weight), 9 * expected)


def test_the_matrix_of_many_single_precision_images_has_no_negative_eigenvalue():
    weight = numbers(10, 32, key="w", scale=0.2).float()
    matrix = empirical_feature_matrix(numbers(500, 32).float() @ weight.T, weight)
    assert matrix.dtype == torch.float32
    assert torch.linalg.eigvalsh(matrix.double()).min() > -1e-7


# -- EFC: the penalty ----------------------------------------------------------------------------------


def test_the_penalty_is_the_mean_quadratic_form():
    student, teacher, matrix = numbers(5, 3), numbers(5, 3, key="b"), positive(3)
    weights = [[10 * matrix[i, j].item() + 0.1 * (i == j) for j in range(3)] for i in range(3)]
    expected = 0.0
    for new, old in zip(student.tolist(), teacher.tolist(), strict=True):
        d = [a - b for a, b in zip(new, old, strict=True)]
        expected += sum(d[i] * weights[i][j] * d[j] for i in range(3) for j in range(3)) / 5
    assert consolidation_penalty(student, teacher, matrix, 10.0, 0.1).item() == pytest.approx(expected, rel=1e-12)
    inputs = numbers(5, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: consolidation_penalty(x, teacher, matrix, 10.0, 0.1), inputs)


def test_the_penalty_and_its_gradient_are_zero_for_features_that_did_not_move():
    student = numbers(5, 3).requires_grad_()
    loss = consolidation_penalty(student, student.detach().clone(), positive(3), 10.0, 0.1)
    loss.backward()
    assert loss == 0
    assert torch.count_nonzero(student.grad) == 0


def test_a_direction_that_does_not_matter_costs_the_damping_alone():
    teacher, matrix = numbers(5, 3), torch.diag(torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64))
    along = [teacher + 3 * torch.eye(3, dtype=torch.float64)[axis] for axis in range(2)]
    costs = [consolidation_penalty(student, teacher, matrix, 10.0, 0.1).item() for student in along]
    assert costs == pytest.approx([(10 * 2 + 0.1) * 9, 0.1 * 9])  # steps of length 3


def test_the_penalty_does_not_depend_on_the_batch_size():
    student, teacher, matrix = numbers(5, 3), numbers(5, 3, key="b"), positive(3)
    whole = consolidation_penalty(student, teacher, matrix, 10.0, 0.1)
    torch.testing.assert_close(
        consolidation_penalty(student.repeat(4, 1), teacher.repeat(4, 1), matrix, 10.0, 0.1), whole
    )


# -- EFC: the drift of a mean --------------------------------------------------------------------------


def naive_drift(old, new, means, matrix, sigma):
    old, new, means, matrix = (value.numpy() for value in (old, new, means, matrix))
    distance = np.array([[(f - m) @ matrix @ (f - m) for f in old] for m in means])
    scaled = (-distance - (-distance).min()) / ((-distance).max() - (-distance).min())
    weights = np.exp(scaled / (2 * sigma**2))
    return np.array([sum(w * (b - a) for w, a, b in zip(row, old, new, strict=True)) / row.sum() for row in weights])


@pytest.mark.parametrize("sigma", [0.2, 1.0])
def test_the_drift_is_the_mean_over_images_weighted_by_nearness(sigma):
    old, new, means, matrix = numbers(7, 3), numbers(7, 3, key="b"), numbers(2, 3, key="m"), positive(3)
    found = weighted_drift(old, new, means, matrix, sigma)
    np.testing.assert_allclose(found, naive_drift(old, new, means, matrix, sigma), rtol=1e-10)


def test_there_is_no_drift_where_nothing_moved():
    old, means = numbers(7, 3), numbers(2, 3, key="m")
    assert torch.count_nonzero(weighted_drift(old, old.clone(), means, positive(3), 0.2)) == 0


def test_if_all_images_move_by_the_same_step_so_does_every_mean():
    old, step = numbers(7, 3), numbers(1, 3, key="s")
    found = weighted_drift(old, old + step, numbers(2, 3, key="m"), positive(3), 0.2)
    torch.testing.assert_close(found, step.expand(2, 3))


def test_a_small_sigma_takes_the_nearest_image_in_the_directions_that_matter():
    old = torch.tensor([[0.0, 9.0], [1.0, 0.0]], dtype=torch.float64)
    new, matrix = old + torch.tensor([[5.0, 5.0], [7.0, 7.0]]), torch.diag(torch.tensor([1.0, 0.0]).double())
    # the first image is far from the mean, but only in a direction that does not matter
    found = weighted_drift(old, new, torch.zeros(1, 2, dtype=torch.float64), matrix, 0.01)
    torch.testing.assert_close(found, torch.full((1, 2), 5.0, dtype=torch.float64))


def test_without_a_matrix_all_images_count_equally():
    old, new = numbers(7, 3), numbers(7, 3, key="b")
    found = weighted_drift(old, new, numbers(2, 3, key="m"), torch.zeros(3, 3, dtype=torch.float64), 0.2)
    torch.testing.assert_close(found, (new - old).mean(0).expand(2, 3))


# -- EFC: cross-entropy of old and new features --------------------------------------------------------


def test_both_parts_have_their_share_however_many_rows_they_have(naive):
    new, old = numbers(3, 5), numbers(8, 5, key="b")
    new_labels, old_labels = torch.tensor([3, 4, 4]), torch.arange(8) % 3
    parts = naive.cross_entropy(new, new_labels), naive.cross_entropy(old, old_labels)
    found = balanced_cross_entropy(new, new_labels, old, old_labels, 0.6).item()
    assert found == pytest.approx(0.4 * parts[0] + 0.6 * parts[1], rel=1e-12)
    inputs = (numbers(3, 5).requires_grad_(), numbers(8, 5, key="b").requires_grad_())
    assert torch.autograd.gradcheck(lambda a, b: balanced_cross_entropy(a, new_labels, b, old_labels, 0.6), inputs)


def test_features_that_are_classified_with_certainty_cost_nothing():
    logits = 1000 * torch.eye(4, dtype=torch.float64)
    labels = torch.arange(4)
    assert balanced_cross_entropy(logits[2:], labels[2:], logits[:2], labels[:2], 0.5) == 0


def test_with_as_many_rows_per_class_it_is_the_plain_cross_entropy(naive):
    logits, labels = numbers(10, 5), torch.arange(10) % 5
    is_old = labels < 3
    found = balanced_cross_entropy(logits[~is_old], labels[~is_old], logits[is_old], labels[is_old], 3 / 5)
    assert found.item() == pytest.approx(naive.cross_entropy(logits, labels), rel=1e-12)
