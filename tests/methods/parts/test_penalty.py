import numpy as np
import pytest
import torch
from tests.methods.parts.test_statistics import CLASSES, SIZE, Identity, features, statistics

from etag.core.random import Draws, Stream
from etag.core.work import Batch
from etag.methods.parts.penalty import PENALTIES, LeaveOneOut, PenaltyErrors, ridge_problem


def naive_ridge(x, labels, penalty):
    """Weights and bias by least squares on an extended system: no centering, no normal equations."""
    rows, y = len(x), np.eye(CLASSES)[labels]
    extended = np.vstack(
        [np.hstack([x, np.ones((rows, 1))]), np.hstack([np.sqrt(penalty) * np.eye(SIZE), np.zeros((SIZE, 1))])]
    )
    target = np.vstack([y, np.zeros((SIZE, CLASSES))])
    solution, *_ = np.linalg.lstsq(extended, target, rcond=None)
    return solution[:-1].T, solution[-1]


@pytest.mark.parametrize("penalty", [1e-2, 1.0, 1e3])
def test_the_solution_equals_least_squares(penalty):
    inputs, labels = features()
    weight, bias = ridge_problem(statistics(inputs, labels)).solution(penalty)
    expected = naive_ridge(inputs.double().numpy(), labels.numpy(), penalty)
    np.testing.assert_allclose(weight, expected[0], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(bias, expected[1], rtol=1e-8, atol=1e-12)


def test_leave_one_out_errors_equal_leaving_each_image_out():
    inputs, labels = features(rows=25)
    problem = ridge_problem(statistics(inputs, labels))
    batch = Batch(inputs, labels, Draws(Stream.root(0)), len(inputs))
    errors = LeaveOneOut(Identity(), problem, lambda rows: rows)(batch)["errors"]
    x, y = inputs.double().numpy(), np.eye(CLASSES)[labels.numpy()]
    for number in (0, 4, 9):
        expected = 0.0
        for row in range(len(x)):
            others = np.arange(len(x)) != row
            weight, bias = naive_ridge(x[others], labels.numpy()[others], PENALTIES[number])
            expected += ((y[row] - weight @ x[row] - bias) ** 2).sum()
        assert errors[number].item() == pytest.approx(expected, rel=1e-6)


def test_the_only_image_of_a_class_does_not_count():
    inputs, labels = features(rows=25)
    rows = torch.cat([(labels != 2).nonzero().flatten(), (labels == 2).nonzero().flatten()[:1]])
    inputs, labels = inputs[rows].double(), labels[rows]
    problem = ridge_problem(statistics(inputs, labels))
    expected = [error[:-1].square().sum() for error in problem.left_out_errors(inputs, labels, PENALTIES)]
    torch.testing.assert_close(problem.squared_left_out_errors(inputs, labels), torch.stack(expected))
    x = inputs.numpy()
    assert problem.spread == pytest.approx(((x - x.mean(0)) ** 2).sum() / len(x))


def test_equal_features_have_a_solution():
    problem = ridge_problem(statistics(torch.ones(CLASSES, SIZE), torch.arange(CLASSES)))
    weight, bias = problem.solution(problem.spread)
    np.testing.assert_allclose(weight, 0, atol=1e-12)
    np.testing.assert_allclose(bias, 1 / CLASSES)


def test_the_best_penalty_has_the_smallest_sum_of_errors():
    errors = PenaltyErrors()
    assert errors.best is None
    first, second = torch.full((len(PENALTIES),), 5.0), torch.full((len(PENALTIES),), 5.0)
    first[3], second[3], second[7] = 1.0, 6.0, 0.0
    errors.add(first)
    assert errors.best == PENALTIES[3]
    errors.add(second)
    assert errors.best == PENALTIES[7]
    again = PenaltyErrors()
    again.load_state_dict(errors.state_dict())
    assert again.best == PENALTIES[7]
