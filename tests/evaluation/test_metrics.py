import pytest

from etag.evaluation.metrics import (
    METRICS,
    Metric,
    accuracy_after_each_task,
    average_accuracy,
    forgetting,
    forgetting_over_all_tasks,
    forgetting_per_task,
    stored_summary,
    summary,
)

FALLING = [[0.9], [0.6, 0.8], [0.3, 0.5, 0.7]]
RISING = [[0.5], [0.6, 0.4], [0.8, 0.5, 0.9]]  # old tasks get better: negative forgetting
PEAK = [[0.4], [0.9, 0.5], [0.7, 0.2, 0.6]]  # the best accuracy is not the first
CLASSES = [4, 1, 1]

TABLE = [
    # matrix, weighted, step accuracies, A, forgetting per task, F
    (FALLING, True, [0.9, 3.2 / 5, 2.4 / 6], 1.94 / 3, [0.6, 0.3], 2.7 / 5),
    (FALLING, False, [0.9, 0.7, 0.5], 0.7, [0.6, 0.3], 0.45),
    (RISING, True, [0.5, 2.8 / 5, 4.6 / 6], (0.5 + 0.56 + 4.6 / 6) / 3, [-0.2, -0.1], -0.9 / 5),
    (RISING, False, [0.5, 0.5, 2.2 / 3], (1 + 2.2 / 3) / 3, [-0.2, -0.1], -0.15),
    (PEAK, True, [0.4, 4.1 / 5, 3.6 / 6], 1.82 / 3, [0.2, 0.3], 1.1 / 5),
    (PEAK, False, [0.4, 0.7, 0.5], 1.6 / 3, [0.2, 0.3], 0.25),
]


@pytest.mark.parametrize(("matrix", "weighted", "steps", "accuracy", "lost", "forgotten"), TABLE)
def test_the_metrics_of_three_tasks_by_hand(matrix, weighted, steps, accuracy, lost, forgotten):
    assert accuracy_after_each_task(matrix, CLASSES, weighted) == pytest.approx(steps)
    assert average_accuracy(matrix, CLASSES, weighted) == pytest.approx(accuracy)
    assert forgetting_per_task(matrix) == pytest.approx(lost)
    assert forgetting(matrix, CLASSES, weighted) == pytest.approx(forgotten)


@pytest.mark.parametrize(("matrix", "divided"), [(FALLING, 0.9 / 3), (RISING, -0.1), (PEAK, 0.5 / 3)])
def test_the_papers_forgetting_divides_by_all_tasks(matrix, divided):
    assert forgetting_over_all_tasks(matrix) == pytest.approx(divided)


def test_equal_tasks_make_both_weightings_equal():
    for weighted in (True, False):
        assert average_accuracy(FALLING, [2, 2, 2], weighted) == pytest.approx(0.7)
        assert forgetting(FALLING, [2, 2, 2], weighted) == pytest.approx(0.45)


def test_a_single_task_forgets_nothing():
    expected = {"A_weighted": 0.8, "A_plain": 0.8, "F_weighted": 0, "F_plain": 0, "F_paper": 0, "last_accuracy": 0.8}
    assert summary([[0.8]], [5]) == pytest.approx(expected)


def test_the_summary_has_every_metric():
    expected = {
        "A_weighted": 1.94 / 3,
        "A_plain": 0.7,
        "F_weighted": 0.54,
        "F_plain": 0.45,
        "F_paper": 0.3,
        "last_accuracy": 0.4,
    }
    assert summary(FALLING, CLASSES) == pytest.approx(expected)
    assert {metric.name for metric in METRICS} == set(expected)


def test_every_metric_says_what_it_is():
    assert len({metric.name for metric in METRICS}) == len({metric.title for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.definition
        assert metric.better == ("lower" if metric.name.startswith("F_") else "higher")
        assert metric.unit == ("points" if metric.name.startswith("F_") else "%")


def stored(**values):
    matrix = [[*row, *[None] * (3 - len(row))] for row in FALLING]
    return {"accuracy_matrix": matrix, "classes_per_task": CLASSES, **values}


def test_stored_values_are_used_and_missing_ones_computed():
    found = stored_summary(stored(A_weighted=0.123))
    assert found == pytest.approx(summary(FALLING, CLASSES) | {"A_weighted": 0.123})


def test_classes_that_a_task_shows_again_count():
    assert stored_summary(stored(classes_in_task=[2, 2, 2]))["A_weighted"] == pytest.approx(0.7)


def test_a_new_metric_is_added_in_one_place(monkeypatch):
    worst = Metric("worst", "Worst accuracy", "lowest in the matrix", "higher", lambda rows, _: min(map(min, rows)))
    monkeypatch.setattr("etag.evaluation.metrics.METRICS", (*METRICS, worst))
    assert summary(FALLING, CLASSES)["worst"] == 0.3
    assert stored_summary(stored())["worst"] == 0.3, "also of runs that are older than the metric"


def test_classes_that_do_not_fit_the_matrix_are_an_error():
    with pytest.raises(ValueError, match="shorter"):
        average_accuracy(FALLING, [4, 1], weighted=True)
