import math

import pytest
import torch

from etag.core.outputs import Outputs
from etag.core.random import Stream
from etag.models.predictors import LinearPredictor, MultiHeadPredictor, RectifyingPredictor


def said(*rows):
    return Outputs(logits=torch.tensor(rows))


def numbers(*shape):
    return torch.randn(*shape, generator=Stream.root(0).generator(*shape))


def naive_softmax(naive, rows):
    return torch.tensor([[math.exp(value) for value in naive.log_softmax(row)] for row in rows])


# -- one head --------------------------------------------------------------------------------------


def test_of_every_four_outputs_the_first_is_the_classs_own(naive):
    logits = numbers(5, 16)  # four classes, three of them seen
    expected = naive_softmax(naive, [[row[0], row[4], row[8]] for row in naive.rows(logits)])
    torch.testing.assert_close(LinearPredictor(3, every=4)(Outputs(logits=logits)), expected)


def test_by_default_every_output_is_a_class(naive):
    logits = numbers(5, 4)
    expected = naive_softmax(naive, [row[:3] for row in naive.rows(logits)])
    torch.testing.assert_close(LinearPredictor(3)(Outputs(logits=logits)), expected)


# -- a head a task ---------------------------------------------------------------------------------


def test_every_head_has_a_softmax_of_its_own(naive):
    logits = numbers(5, 8)  # the last two outputs are of no task yet
    rows = naive.rows(logits)
    heads = [naive_softmax(naive, [row[first:end] for row in rows]) for first, end in ((0, 3), (3, 4), (4, 6))]
    torch.testing.assert_close(MultiHeadPredictor([3, 1, 2])(Outputs(logits=logits)), torch.cat(heads, dim=1))


def test_the_answer_is_the_surest_head_not_the_highest_logit():
    outputs = said([9.0, 8.9, 3.0, -3.0])
    assert MultiHeadPredictor([2, 2])(outputs).argmax(1).tolist() == [2]
    assert LinearPredictor(4)(outputs).argmax(1).tolist() == [0]


# -- IL2M ------------------------------------------------------------------------------------------


def rectifying(*tasks):
    """Of (initial, current_old, confidence) per task."""
    made = RectifyingPredictor()
    for initial, current_old, confidence in tasks:
        made.learn(torch.tensor(initial), torch.tensor(current_old), torch.tensor(confidence))
    return made


# classes 0 and 1 once had mean scores of 4 and 2, and now have 2 and 4; confidence went from 5 to 4
TWO_TASKS = (([4.0, 2.0], [], 5.0), ([3.0], [2.0, 4.0], 4.0))


def test_where_a_new_class_would_win_old_classes_get_their_scores_back():
    made = rectifying(*TWO_TASKS)(said([2.0, 1.0, 3.0]))
    expected = [2.0 * (4 / 2) * (4 / 5), 1.0 * (2 / 4) * (4 / 5), 3.0]  # 3.2, 0.4, 3
    torch.testing.assert_close(made, torch.tensor([expected]))
    assert made.argmax(1).tolist() == [0]


def test_where_an_old_class_wins_nothing_is_changed():
    outputs = said([3.0, 1.0, 2.0], [0.5, 2.0, 1.9], [2.0, 1.0, 3.0])
    made = rectifying(*TWO_TASKS)(outputs)
    assert torch.equal(made[:2], outputs.logits[:2])
    assert not torch.equal(made[2], outputs.logits[2])


def test_outputs_of_classes_to_come_are_left_out():
    assert torch.equal(
        rectifying(*TWO_TASKS)(said([2.0, 1.0, 3.0, 9.0, 9.0])), rectifying(*TWO_TASKS)(said([2.0, 1.0, 3.0]))
    )


def test_at_the_base_task_all_classes_are_new_and_keep_their_scores():
    outputs = said([1.0, -2.0], [0.5, 3.0])
    assert torch.equal(rectifying(TWO_TASKS[0])(outputs), outputs.logits)


@pytest.mark.parametrize(
    ("tasks", "factors"),
    [
        ((([-4.0, 2.0], [], 5.0), ([3.0], [2.0, 4.0], 4.0)), [1, 0.4, 1]),  # a mean that was negative
        ((([0.0, 2.0], [], 5.0), ([3.0], [2.0, 4.0], 4.0)), [1, 0.4, 1]),  # or nothing
        ((([4.0, 2.0], [], 5.0), ([3.0], [0.0, 4.0], 4.0)), [1, 0.4, 1]),  # a mean that is nothing now
        ((([4.0, 2.0], [], 5.0), ([3.0], [-2.0, 4.0], 4.0)), [1, 0.4, 1]),  # or negative
        ((([-4.0, 2.0], [], 5.0), ([3.0], [-2.0, 4.0], 4.0)), [1, 0.4, 1]),  # both: their ratio means nothing
        ((([4.0, 2.0], [], -5.0), ([3.0], [2.0, 4.0], 4.0)), [1, 1, 1]),  # confidence
        ((([4.0, 2.0], [], 5.0), ([3.0], [2.0, 4.0], 0.0)), [1, 1, 1]),
    ],
)
def test_means_that_allow_no_ratio_leave_the_score(tasks, factors):
    made = rectifying(*tasks)
    assert made.factors.tolist() == pytest.approx(factors)
    torch.testing.assert_close(made(said([1.0, 1.0, 2.0])), torch.tensor([[factors[0], factors[1], 2.0]]))


THREE_TASKS = (([4.0, 2.0], [], 5.0), ([3.0], [2.0, 4.0], 4.0), ([1.0, 2.0], [1.0, 8.0, 6.0], 10.0))


def test_every_class_is_measured_by_the_confidence_of_its_own_task():
    made = rectifying(*THREE_TASKS)
    expected = [(4 / 1) * (10 / 5), (2 / 8) * (10 / 5), (3 / 6) * (10 / 4), 1, 1]
    assert made.factors.tolist() == pytest.approx(expected)
    assert made.task.tolist() == [0, 0, 1, 2, 2]
    middle = said([1.0, 1.0, 5.0, 2.0, 2.0])  # class 2 is no longer new
    assert torch.equal(made(middle), middle.logits)


def test_its_memory_is_saved_and_loaded_into_a_fresh_one():
    learned, fresh = rectifying(*THREE_TASKS), RectifyingPredictor()
    fresh.load_state_dict(learned.state_dict())
    outputs = Outputs(logits=numbers(20, 5))
    assert torch.equal(fresh(outputs), learned(outputs))
    assert not torch.equal(fresh(outputs), outputs.logits)
    for part in (learned, fresh):
        part.learn(torch.tensor([2.0]), torch.ones(5), torch.tensor(3.0))  # and it goes on
    assert torch.equal(fresh.factors, learned.factors)
