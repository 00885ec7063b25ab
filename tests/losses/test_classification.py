import pytest
import torch

from etag.core.random import Stream
from etag.losses.classification import cross_entropy, weighted_cross_entropy

LOGITS = 3 * torch.randn(6, 7, dtype=torch.float64, generator=Stream.root(0).torch_generator())


@pytest.mark.parametrize(
    ("first", "end", "labels"),
    [
        (0, None, [0, 6, 3, 3, 2, 5]),
        (0, 5, [0, 4, 3, 3, 2, 1]),
        (4, 7, [4, 6, 5, 5, 4, 6]),
        (4, None, [4, 6, 5, 5, 4, 6]),
    ],
    ids=["all", "seen", "new", "to the end"],
)
def test_cross_entropy_is_minus_the_mean_log_probability_among_the_selected_classes(naive, first, end, labels):
    logits = LOGITS.clone().requires_grad_()
    loss = cross_entropy(logits, torch.tensor(labels), first, end)
    selected = range(first, 7 if end is None else end)
    assert loss.item() == pytest.approx(naive.cross_entropy(LOGITS, labels, selected), rel=1e-12)
    loss.backward()
    assert (logits.grad[:, list(selected)] != 0).all()
    others = [output for output in range(7) if output not in selected]
    assert torch.count_nonzero(logits.grad[:, others]) == 0
    assert torch.autograd.gradcheck(
        lambda x: cross_entropy(x, torch.tensor(labels), first, end), LOGITS.clone().requires_grad_()
    )


def test_the_gradient_of_cross_entropy_is_the_probability_minus_the_label():
    logits = LOGITS.clone().requires_grad_()
    labels = torch.tensor([0, 6, 3, 3, 2, 5])
    cross_entropy(logits, labels).backward()
    odds = LOGITS.exp()
    expected = odds / odds.sum(1, keepdim=True)
    for row, label in enumerate(labels):
        expected[row, label] -= 1
    torch.testing.assert_close(logits.grad, expected / 6)


def test_cross_entropy_over_one_class_is_zero():
    logits = LOGITS.clone().requires_grad_()
    loss = cross_entropy(logits, torch.full((6,), 2), 2, 3)
    loss.backward()
    assert loss == 0
    assert torch.count_nonzero(logits.grad) == 0


def test_cross_entropy_of_extreme_logits_is_finite():
    logits = torch.tensor([[1e4, 0.0], [0.0, 1e4]], requires_grad=True)
    assert cross_entropy(logits, torch.tensor([0, 1])) == 0
    wrong = cross_entropy(logits, torch.tensor([1, 0]))
    wrong.backward()
    assert wrong == 1e4
    assert logits.grad.isfinite().all()


def test_weighted_cross_entropy_weights_each_row(naive):
    logits, labels = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([2, 4, 3, 2])
    weights = torch.tensor([0.5, 0.0, 2.0, 1.0])
    per_row = [naive.cross_entropy(logits[k : k + 1], labels[k : k + 1], range(2, 5)) for k in range(4)]
    expected = sum(w * value for w, value in zip(weights.tolist(), per_row, strict=True)) / 4
    assert weighted_cross_entropy(logits, labels, weights, 2, 5).item() == pytest.approx(expected, rel=1e-6)
    ones = weighted_cross_entropy(logits, labels, torch.ones(4), 2, 5)
    torch.testing.assert_close(ones, cross_entropy(logits, labels, 2, 5))
    assert weighted_cross_entropy(logits, labels, torch.zeros(4), 0, 5).item() == 0
