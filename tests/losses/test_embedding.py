import math

import pytest
import torch

from etag.core.random import Stream
from etag.losses.embedding import auxiliary_cross_entropy, auxiliary_divergence, feature_distance


def numbers(*shape, key="a", scale=2.0):
    return scale * torch.randn(*shape, dtype=torch.float64, generator=Stream.root(0).torch_generator(key, *shape))


# -- Eq. (2) ---------------------------------------------------------------------------------------

LABELS = [0, 1, 2, 3, 8, 9, 10, 11]  # two images, classes 0 and 2, four views each


def test_equation_2_sums_over_stages_and_averages_over_views(naive):
    stages = [numbers(8, 12, key=stage) for stage in range(3)]
    expected = sum(naive.cross_entropy(stage, LABELS) for stage in stages)
    assert auxiliary_cross_entropy(stages, torch.tensor(LABELS)).item() == pytest.approx(expected, rel=1e-12)


def test_equation_2_trains_every_output_of_every_stage():
    stages = [numbers(8, 12, key=stage).requires_grad_() for stage in range(3)]
    auxiliary_cross_entropy(stages, torch.tensor(LABELS)).backward()
    assert all((stage.grad != 0).all() for stage in stages)
    assert torch.autograd.gradcheck(lambda *x: auxiliary_cross_entropy(x, torch.tensor(LABELS)), tuple(stages))


def test_equation_2_is_zero_for_certain_predictions():
    certain = torch.full((8, 12), -1e4)
    certain[torch.arange(8), torch.tensor(LABELS)] = 1e4
    assert auxiliary_cross_entropy([certain, certain], torch.tensor(LABELS)) == 0


# -- Eq. (3) ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean_norm", "frobenius"])
def test_equation_3_is_the_distance_of_features(naive, reduction):
    student, teacher = numbers(5, 4), numbers(5, 4, key="b")
    squares = naive.squares(student, teacher)
    expected = sum(map(math.sqrt, squares)) / 5 if reduction == "mean_norm" else math.sqrt(sum(squares))
    assert feature_distance(student, teacher, reduction).item() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: feature_distance(x, teacher, reduction), student.requires_grad_())


def test_the_default_reduction_is_that_of_the_paper():
    student, teacher = numbers(5, 4), numbers(5, 4, key="b")
    assert feature_distance(student, teacher) == feature_distance(student, teacher, "mean_norm")


def test_the_mean_of_norms_does_not_depend_on_the_batch_size_but_the_frobenius_norm_does():
    student, teacher = numbers(5, 4), numbers(5, 4, key="b")
    four_times = (torch.cat([student] * 4), torch.cat([teacher] * 4))
    torch.testing.assert_close(feature_distance(*four_times), feature_distance(student, teacher))
    once = feature_distance(student, teacher, "frobenius")
    torch.testing.assert_close(feature_distance(*four_times, "frobenius"), 2 * once)


@pytest.mark.parametrize("reduction", ["mean_norm", "frobenius"])
def test_equation_3_and_its_gradient_are_zero_for_equal_features(reduction):
    student = numbers(5, 4).requires_grad_()
    loss = feature_distance(student, student.detach().clone(), reduction)
    loss.backward()
    assert loss == 0
    assert torch.count_nonzero(student.grad) == 0  # not NaN from 0 / 0


def test_equation_3_has_a_gradient_of_equal_norm_for_every_image():
    student = numbers(5, 4).requires_grad_()
    feature_distance(student, numbers(5, 4, key="b")).backward()
    torch.testing.assert_close(student.grad.norm(dim=1), torch.full((5,), 1 / 5, dtype=torch.float64))


# -- Eq. (4) ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_equation_4_is_the_divergence_from_the_teacher(naive, tau):
    student = [numbers(8, 12, key=stage) for stage in range(3)]
    teacher = [numbers(8, 12, key=10 + stage) for stage in range(3)]
    expected = sum(naive.divergence(new, old, tau) for new, old in zip(student, teacher, strict=True))
    assert auxiliary_divergence(student, teacher, tau).item() == pytest.approx(expected, rel=1e-12)


def test_equation_4_on_two_outputs_by_hand():
    student, teacher = torch.zeros(1, 2), torch.tensor([[math.log(3), 0.0]])  # p = (3/4, 1/4), q = (1/2, 1/2)
    by_hand = 3 / 4 * math.log(3 / 2) + 1 / 4 * math.log(1 / 2)
    assert auxiliary_divergence([student], [teacher], 1.0).item() == pytest.approx(by_hand, rel=1e-6)
    assert auxiliary_divergence([2 * student], [2 * teacher], 2.0).item() == pytest.approx(4 * by_hand, rel=1e-6)


def test_equation_4_trains_every_output():
    student, teacher = numbers(8, 12).requires_grad_(), numbers(8, 12, key="b")
    auxiliary_divergence([student], [teacher], 3.0).backward()
    assert (student.grad != 0).all()
    assert torch.autograd.gradcheck(lambda x: auxiliary_divergence([x], [teacher], 3.0), student)


def test_equation_4_and_its_gradient_are_zero_for_equal_logits():
    student = numbers(8, 12).requires_grad_()
    loss = auxiliary_divergence([student], [student.detach().clone()], 3.0)
    loss.backward()
    assert loss == 0
    torch.testing.assert_close(student.grad, torch.zeros_like(student.grad), atol=1e-15, rtol=0)


def test_the_gradient_of_equation_4_is_finite_for_extreme_teachers():
    student = numbers(2, 3).float().requires_grad_()
    teacher = torch.tensor([[1e4, -1e4, 0.0], [-1e4, -1e4, 1e4]])
    auxiliary_divergence([student], [teacher], 3.0).backward()
    assert student.grad.isfinite().all()


def test_tau_squared_makes_the_size_of_the_gradient_independent_of_tau():
    def gradient_norm(tau):
        student = numbers(8, 12, scale=0.01).requires_grad_()
        auxiliary_divergence([student], [numbers(8, 12, key="b", scale=0.01)], tau).backward()
        return student.grad.norm().item()

    assert gradient_norm(3.0) == pytest.approx(gradient_norm(1.0), rel=0.05)  # to first order in the logits


def test_student_and_teacher_need_equally_many_stages():
    with pytest.raises(ValueError, match=r"shorter|longer"):
        auxiliary_divergence([numbers(2, 3)] * 2, [numbers(2, 3)] * 3, 3.0)
