import math

import pytest
import torch

from etag.core.random import Stream
from etag.losses.distillation import (
    attention_distance,
    class_activation_map,
    cosine_distance,
    gradient_activation_map,
    logit_distillation,
    padded_distillation,
    padded_softmax,
    pod_spatial,
    quadratic_penalty,
)


def numbers(*shape, key="a", scale=2.0):
    return scale * torch.randn(*shape, dtype=torch.float64, generator=Stream.root(0).torch_generator(key, *shape))


def unit(row):
    length = math.sqrt(sum(value * value for value in row))
    return [value / length for value in row]


# -- BI-R: logits padded by new classes ------------------------------------------------------------


def test_padded_softmax_gives_unknown_classes_probability_zero(naive):
    padded = padded_softmax(numbers(5, 3), 5)
    torch.testing.assert_close(padded.sum(1), torch.ones(5, dtype=torch.float64))
    assert (padded[:, 3:] == 0).all()
    for row, logits in zip(padded, naive.rows(numbers(5, 3)), strict=True):
        assert row[:3].tolist() == pytest.approx([math.exp(value) for value in naive.log_softmax(logits)])


@pytest.mark.parametrize("tau", [1.0, 2.0])
def test_padded_distillation_is_cross_entropy_times_the_squared_temperature(naive, tau):
    student, teacher = numbers(5, 6), numbers(5, 4, key="b")
    rows = zip(softened(naive, student, tau), softened(naive, teacher, tau), strict=True)
    expected = -sum(math.exp(p) * q for log_q, log_p in rows for q, p in zip(log_q, log_p, strict=False)) / 5
    assert padded_distillation(student, teacher, tau).item() == pytest.approx(tau**2 * expected, rel=1e-12)


def test_padded_distillation_lowers_new_logits_and_has_no_gradient_at_agreement(naive):
    teacher = numbers(5, 4)
    student = torch.cat([teacher, torch.full((5, 2), -1e4, dtype=torch.float64)], dim=1).requires_grad_()
    padded_distillation(student, teacher, 2.0).backward()
    assert student.grad.abs().max() < 1e-12
    student = numbers(5, 6).requires_grad_()
    padded_distillation(student, teacher, 2.0).backward()
    assert (student.grad[:, 4:] > 0).all()
    assert torch.autograd.gradcheck(lambda x: padded_distillation(x, teacher, 2.0), numbers(5, 6).requires_grad_())


# -- LwF: logits -----------------------------------------------------------------------------------


def softened(naive, logits, tau):
    """Return the log-probabilities of each row at a temperature."""
    return [naive.log_softmax([value / tau for value in row]) for row in naive.rows(logits)]


@pytest.mark.parametrize("tau", [1.0, 2.0])
def test_logit_distillation_is_cross_entropy_without_a_factor(naive, tau):
    student, teacher = numbers(5, 4), numbers(5, 4, key="b")
    rows = zip(softened(naive, student, tau), softened(naive, teacher, tau), strict=True)
    expected = -sum(math.exp(p) * q for log_q, log_p in rows for q, p in zip(log_q, log_p, strict=True)) / 5
    assert logit_distillation(student, teacher, tau).item() == pytest.approx(expected, rel=1e-12)


def test_the_gradient_of_logit_distillation_is_the_difference_of_probabilities(naive):
    student, teacher, tau = numbers(5, 4).requires_grad_(), numbers(5, 4, key="b"), 2.0
    logit_distillation(student, teacher, tau).backward()
    new, old = softened(naive, student, tau), softened(naive, teacher, tau)
    expected = [[(math.exp(new[r][c]) - math.exp(old[r][c])) / (5 * tau) for c in range(4)] for r in range(5)]
    torch.testing.assert_close(student.grad, torch.tensor(expected, dtype=torch.float64))


def test_logit_distillation_of_equal_logits_is_their_entropy_without_gradient(naive):
    student = numbers(5, 4).requires_grad_()
    loss = logit_distillation(student, student.detach().clone(), 2.0)
    loss.backward()
    entropy = -sum(math.exp(p) * p for row in softened(naive, student, 2.0) for p in row) / 5
    assert loss.item() == pytest.approx(entropy, rel=1e-12)
    torch.testing.assert_close(student.grad, torch.zeros_like(student.grad), atol=1e-15, rtol=0)


# -- Lucir, POD-flat: cosine distance of features --------------------------------------------------


def test_cosine_distance_is_one_minus_the_mean_cosine(naive):
    student, teacher = numbers(5, 4), numbers(5, 4, key="b")
    pairs = zip(map(unit, naive.rows(student)), map(unit, naive.rows(teacher)), strict=True)
    expected = sum(1 - sum(a * b for a, b in zip(x, y, strict=True)) for x, y in pairs) / 5
    assert cosine_distance(student, teacher).item() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: cosine_distance(x, teacher), student.requires_grad_())


def test_cosine_distance_does_not_depend_on_the_norm():
    student = numbers(5, 4).requires_grad_()
    torch.testing.assert_close(cosine_distance(student, 3 * student.detach()).item(), 0.0, atol=1e-15, rtol=0)
    torch.testing.assert_close(cosine_distance(student, -student.detach()).item(), 2.0)
    cosine_distance(student, numbers(5, 4, key="b")).backward()
    assert (student.grad.norm(dim=1) > 0.01).all()
    torch.testing.assert_close((student.grad * student).sum(1), torch.zeros(5).double(), atol=1e-15, rtol=0)


def test_cosine_distance_has_no_gradient_for_equal_directions():
    student = numbers(5, 4).requires_grad_()
    cosine_distance(student, 3 * student.detach()).backward()
    torch.testing.assert_close(student.grad, torch.zeros_like(student.grad), atol=1e-15, rtol=0)


# -- LwM: attention maps ---------------------------------------------------------------------------


def test_a_class_activation_map_is_a_weighted_sum_of_maps(naive):
    maps, weights = numbers(3, 4, 2, 3), numbers(3, 4, key="b")
    m, w = naive.rows(maps), naive.rows(weights)
    result = class_activation_map(maps, weights)
    assert result.shape == (3, 2, 3)
    for n in range(3):
        for y in range(2):
            for x in range(3):
                expected = max(0.0, sum(w[n][c] / 6 * m[n][c][y][x] for c in range(4)))
                assert result[n, y, x].item() == pytest.approx(expected, rel=1e-12)
    assert 0 < torch.count_nonzero(result) < result.numel()


def test_class_activation_map_equals_grad_cam_with_pooling_and_a_linear_head():
    maps, weights = numbers(3, 4, 2, 3).requires_grad_(), numbers(3, 4, key="b")
    logits = (maps.mean((2, 3)) * weights).sum(1)
    by_gradient = gradient_activation_map(maps, logits, create_graph=True)
    closed = class_activation_map(maps, weights)
    torch.testing.assert_close(by_gradient, closed)
    (one,), (other,) = (torch.autograd.grad(result.square().sum(), maps) for result in (by_gradient, closed))
    assert torch.count_nonzero(one) > 0
    torch.testing.assert_close(one, other)


def cubes(maps, weights):
    """Return a logit that is not linear in the pooled maps, so that its gradient depends on them."""
    return (maps.mean((2, 3)) ** 3 * weights).sum(1)


def test_grad_cam_weights_each_map_by_its_mean_gradient(naive):
    maps, weights = numbers(2, 3, 2, 2).requires_grad_(), numbers(2, 3, key="b")
    m, w = naive.rows(maps), naive.rows(weights)
    result = gradient_activation_map(maps, cubes(maps, weights), create_graph=False)
    for n in range(2):
        pooled = [sum(map(sum, m[n][c])) / 4 for c in range(3)]
        alpha = [3 * w[n][c] * pooled[c] ** 2 / 4 for c in range(3)]
        for y in range(2):
            for x in range(2):
                expected = max(0.0, sum(alpha[c] * m[n][c][y][x] for c in range(3)))
                assert result[n, y, x].item() == pytest.approx(expected, rel=1e-12)
    assert result.any()


def test_grad_cam_is_differentiated_through_its_own_gradient():
    maps, weights = numbers(2, 3, 2, 2).requires_grad_(), numbers(2, 3, key="b")
    assert torch.autograd.gradcheck(lambda m: gradient_activation_map(m, cubes(m, weights), True), maps)

    def gradient(create_graph):
        attention = gradient_activation_map(maps, cubes(maps, weights), create_graph)
        return torch.autograd.grad(attention.sum(), maps)[0]

    assert not torch.allclose(gradient(create_graph=True), gradient(create_graph=False))


def test_attention_distance_is_the_l1_distance_of_unit_vectors(naive):
    student, teacher = numbers(4, 2, 3).abs(), numbers(4, 2, 3, key="b").abs()
    expected = 0.0
    for new, old in zip(naive.rows(student), naive.rows(teacher), strict=True):
        new, old = (unit([value for line in lines for value in line]) for lines in (new, old))
        expected += sum(abs(a - b) for a, b in zip(new, old, strict=True)) / 4
    assert attention_distance(student, teacher).item() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: attention_distance(x, teacher), student.requires_grad_())


def test_attention_distance_does_not_depend_on_the_scale():
    student, teacher = numbers(4, 2, 3).abs(), numbers(4, 2, 3, key="b").abs()
    factors = torch.tensor([0.1, 1.0, 3.0, 50.0]).double()[:, None, None]
    torch.testing.assert_close(attention_distance(factors * student, teacher), attention_distance(student, teacher))
    disjoint = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 7.0]]])
    assert attention_distance(*disjoint) == 2


def test_attention_distance_and_its_gradient_are_zero_for_equal_maps():
    student = numbers(4, 2, 3).abs().requires_grad_()
    loss = attention_distance(student, student.detach().clone())
    loss.backward()
    assert loss == 0
    assert torch.count_nonzero(student.grad) == 0


def test_attention_distance_of_zero_maps_has_a_finite_gradient():
    zeros = torch.zeros(2, 2, 3, requires_grad=True)
    attention_distance(zeros, torch.zeros(2, 2, 3)).backward()
    assert torch.count_nonzero(zeros.grad) == 0
    attention_distance(zeros, torch.ones(2, 2, 3)).backward()
    assert zeros.grad.isfinite().all()


def test_maps_with_negative_evidence_have_no_gradient():
    maps = numbers(3, 4, 2, 2).abs().requires_grad_()
    attention = class_activation_map(maps, -torch.ones(3, 4).double())
    loss = attention_distance(attention, torch.ones(3, 2, 2).double())
    loss.backward()
    assert torch.count_nonzero(attention) == 0
    assert loss.item() == pytest.approx(4 * 0.5)  # four pixels of the unit vector (1/2, 1/2, 1/2, 1/2)
    assert torch.count_nonzero(maps.grad) == 0


# -- POD-spatial -----------------------------------------------------------------------------------


def pooled(m):
    """Return the sums of squares of maps m[channel][row][column] along rows, then along columns, as a unit vector."""
    height, width = len(m[0]), len(m[0][0])
    along_rows = [sum(c[y][x] ** 2 for x in range(width)) for c in m for y in range(height)]
    along_columns = [sum(c[y][x] ** 2 for y in range(height)) for c in m for x in range(width)]
    return unit(along_rows + along_columns)


def test_pod_spatial_is_the_distance_of_pooled_energies_averaged_over_images_and_stages(naive):
    shapes = [(3, 2, 4, 5), (3, 4, 2, 3)]
    student, teacher = ([numbers(*shape, key=key) for shape in shapes] for key in "ab")
    per_stage = []
    for new, old in zip(student, teacher, strict=True):
        rows = zip(map(pooled, naive.rows(new)), map(pooled, naive.rows(old)), strict=True)
        per_stage.append(sum(math.dist(a, b) for a, b in rows) / 3)
    assert pod_spatial(student, teacher).item() == pytest.approx(sum(per_stage) / 2, rel=1e-12)
    inputs = tuple(maps.requires_grad_() for maps in student)
    assert torch.autograd.gradcheck(lambda *maps: pod_spatial(maps, teacher), inputs)


def test_pod_spatial_and_its_gradient_are_zero_for_equal_maps():
    student = [numbers(3, 2, 4, 4).requires_grad_()]
    loss = pod_spatial(student, [student[0].detach().clone()])
    loss.backward()
    assert loss == 0
    assert torch.count_nonzero(student[0].grad) == 0  # not NaN from 0 / 0


def test_pod_spatial_does_not_depend_on_scale_and_sign_of_the_maps():
    student, teacher = numbers(3, 2, 4, 4), numbers(3, 2, 4, 4, key="b")
    plain = pod_spatial([student], [teacher])
    torch.testing.assert_close(pod_spatial([7 * student], [0.1 * teacher]), plain)
    torch.testing.assert_close(pod_spatial([-student], [teacher]), plain)
    assert plain > 0.1


def test_pod_spatial_depends_on_where_the_energy_is():
    left, right = torch.zeros(2, 1, 1, 2, 2)
    left[0, 0, :, 0], right[0, 0, :, 1] = 1, 1
    # sums along rows agree, (1, 1); those along columns are (2, 0) and (0, 2); the length of each vector is sqrt(6)
    assert pod_spatial([left], [right]).item() == pytest.approx(math.sqrt(8 / 6))


def test_pod_spatial_of_zero_maps_has_a_finite_gradient():
    zeros = torch.zeros(2, 1, 2, 2, requires_grad=True)
    pod_spatial([zeros], [torch.ones(2, 1, 2, 2)]).backward()
    assert torch.count_nonzero(zeros.grad) == 0


def test_student_and_teacher_need_equally_many_stages():
    with pytest.raises(ValueError, match=r"shorter|longer"):
        pod_spatial([numbers(2, 1, 2, 2)] * 2, [numbers(2, 1, 2, 2)] * 3)


# -- EWC and MAS: distance of weights -----------------------------------------------------------


def test_quadratic_penalty_is_half_the_weighted_squared_distance():
    weights, anchor, importance = numbers(7), numbers(7, key="b"), numbers(7, key="c").abs()
    rows = zip(weights.tolist(), anchor.tolist(), importance.tolist(), strict=True)
    expected = sum(i * (w - a) ** 2 / 2 for w, a, i in rows)
    assert quadratic_penalty(weights, anchor, importance).item() == pytest.approx(expected, rel=1e-12)


def test_the_gradient_is_the_importance_times_the_difference():
    weights, anchor, importance = numbers(7).requires_grad_(), numbers(7, key="b"), numbers(7, key="c").abs()
    importance[3] = 0
    quadratic_penalty(weights, anchor, importance).backward()
    expected = [i * (w - a) for w, a, i in zip(weights.tolist(), anchor.tolist(), importance.tolist(), strict=True)]
    assert weights.grad.tolist() == pytest.approx(expected, rel=1e-12)
    assert weights.grad[3] == 0  # unimportant weights are free


def test_the_penalty_and_its_gradient_are_zero_at_the_anchor():
    weights = numbers(7).requires_grad_()
    loss = quadratic_penalty(weights, weights.detach().clone(), numbers(7, key="c").abs())
    loss.backward()
    assert loss == 0
    assert torch.count_nonzero(weights.grad) == 0
