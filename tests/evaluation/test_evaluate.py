import pytest
import torch

from etag.core.outputs import Need
from etag.core.random import Placement
from etag.core.scenario import Task
from etag.evaluation.evaluate import features_pass, judge, predictions_pass


def two_tasks(*images):
    """Of two classes and of one, with so many test images."""
    counts = [range(count) for count in images]  # judging only asks how many there are
    return [Task(0, 0, 2, None, counts[0], base=2), Task(1, 2, 1, None, counts[1], base=2)]


def answers(*rows):
    """Rows of (label, answer, answer within the task)."""
    return dict(zip(("label", "answer", "within"), torch.tensor(rows).T, strict=True))


def test_accuracies_and_confusion_by_hand():
    found = judge(answers((0, 0, 0), (0, 2, 0), (0, 1, 1), (1, 1, 1), (2, 2, 2), (2, 0, 2)), two_tasks(4, 2))
    assert found.accuracies == [2 / 4, 1 / 2]
    assert found.task_aware == [3 / 4, 1.0]
    assert found.confusion == [[1, 1, 1], [0, 1, 0], [1, 0, 1]]


def test_an_answer_beyond_the_classes_seen_is_wrong_and_in_no_column():
    found = judge(answers((0, 5, 0), (0, 0, 0), (1, 3, 1), (2, 2, 2)), two_tasks(3, 1))
    assert found.accuracies == [1 / 3, 1.0]
    assert found.task_aware == [1.0, 1.0]
    assert found.confusion == [[1, 0, 0], [0, 0, 0], [0, 0, 1]]


def test_the_order_of_a_tasks_images_does_not_matter():
    first, second = [(0, 0, 0), (1, 1, 1), (0, 2, 1)], [(2, 0, 2), (2, 2, 2)]
    tasks = two_tasks(3, 2)
    assert judge(answers(*first, *second), tasks) == judge(answers(*reversed(first), *reversed(second)), tasks)


def test_tasks_that_show_the_same_classes_are_judged_apart():
    tasks = [Task(0, 0, 2, None, range(3), base=2), Task(1, 2, 0, None, range(2), base=2)]
    found = judge(answers((0, 0, 0), (1, 1, 1), (1, 0, 0), (0, 1, 1), (1, 1, 1)), tasks)
    assert found.accuracies == [2 / 3, 1 / 2]
    assert found.confusion == [[1, 1], [1, 2]]


@pytest.fixture
def learned(lab):
    """Two tasks of three learned by a solver whose head knows all classes."""
    laboratory = lab("fine", {"head": {"growth": "fixed"}, "argmax": "all"}, lr=0.01, epochs=3)
    laboratory.learn(0, 1)
    return laboratory


@pytest.mark.parametrize("argmax", ["seen", "all"])
def test_the_sweep_answers_as_the_solver_does_image_by_image(learned, argmax, disturb):
    method, tasks = learned.method, learned.scenario.tasks[:2]
    method.options = method.options.model_copy(update={"argmax": argmax})
    (block,) = disturb(method.solver.head, scale=1.0).blocks
    images = tasks[0].test.join([tasks[1].test])
    features = learned.engine.run_pass(features_pass(images, method.solver, learned.preprocess, Placement()))[
        "features"
    ]
    block.bias.data = -block.weight.data @ features.mean(0)  # so that answers are many and various
    data_pass = predictions_pass(tasks, method.solver, method.predictor(), learned.preprocess, Placement())
    found = learned.engine.run_pass(data_pass)

    expected, competing = [], 5 if argmax == "seen" else 7
    for task in tasks:
        for pixels, label in zip(task.test.pixels, task.test.labels.tolist(), strict=True):
            inputs = learned.preprocess.test(pixels[None])
            logits = method.solver.eval()(inputs, Need.LOGITS).logits[0].tolist()
            answer = max(range(competing), key=logits.__getitem__)
            expected.append((label, answer, max(range(task.old, task.seen), key=logits.__getitem__)))
    assert list(zip(*(found[name].tolist() for name in ("label", "answer", "within")), strict=True)) == expected
    assert len({answer for _, answer, _ in expected}) > 3
    assert any(answer >= 5 for _, answer, _ in expected) is (argmax == "all")

    judged = judge(found, tasks)
    for index, task in enumerate(tasks):
        own = [row for row in expected if task.old <= row[0] < task.seen]
        assert judged.accuracies[index] == sum(label == answer for label, answer, _ in own) / len(own)
        assert judged.task_aware[index] == sum(label == within for label, _, within in own) / len(own)
    for true, row in enumerate(judged.confusion):
        for answer, count in enumerate(row):
            assert count == sum(label == true and a == answer for label, a, _ in expected)


def test_scores_may_be_negative(learned):
    class Logits:
        need = Need.LOGITS

        def __call__(self, outputs):
            return outputs.logits[:, :5] - 1000

    tasks, method = learned.scenario.tasks[:2], learned.method
    method.options = method.options.model_copy(update={"argmax": "seen"})
    found = [
        learned.engine.run_pass(predictions_pass(tasks, method.solver, predictor, learned.preprocess, Placement()))
        for predictor in (method.predictor(), Logits())
    ]
    assert all(torch.equal(found[0][name], found[1][name]) for name in ("answer", "within"))


def test_features_are_those_of_the_images_in_order(learned):
    images = learned.scenario.tasks[0].test
    found = learned.engine.run_pass(features_pass(images, learned.method.solver, learned.preprocess, Placement()))
    assert torch.equal(found["labels"], images.labels)
    alone = [learned.preprocess.test(pixels[None]) for pixels in images.pixels]
    expected = torch.cat([learned.method.solver(inputs, Need.FEATURE).feature for inputs in alone])
    torch.testing.assert_close(found["features"], expected)
    assert not found["features"].requires_grad


def test_evaluation_changes_nothing(learned, snapshot):
    solver = learned.method.solver
    before = snapshot(solver)
    data_pass = predictions_pass(
        learned.scenario.tasks[:1], solver, learned.method.predictor(), learned.preprocess, Placement()
    )
    first, again = learned.engine.run_pass(data_pass), learned.engine.run_pass(data_pass)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert all(torch.equal(value, before[name]) for name, value in solver.state_dict().items())
