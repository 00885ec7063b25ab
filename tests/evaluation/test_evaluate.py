import pytest
import torch

from etag.core.outputs import Need
from etag.core.scenario import Task
from etag.evaluation.evaluate import evaluate, predictions_pass
from etag.models.prediction import HeadRule, PredictionRule


def two_tasks(*images):
    """Of two classes and of one, with so many test images."""
    counts = [range(count) for count in images]  # evaluation only reads how many there are
    return [Task(0, 0, 2, None, counts[0], num_base=2), Task(1, 2, 1, None, counts[1], num_base=2)]


def predictions(*rows):
    """Rows of (label, prediction, prediction within the task)."""
    return dict(zip(("label", "prediction", "task_aware"), torch.tensor(rows).T, strict=True))


def test_accuracies_and_confusion_by_hand():
    found = evaluate(predictions((0, 0, 0), (0, 2, 0), (0, 1, 1), (1, 1, 1), (2, 2, 2), (2, 0, 2)), two_tasks(4, 2))
    assert found.accuracies == [2 / 4, 1 / 2]
    assert found.task_aware == [3 / 4, 1.0]
    assert found.confusion == [[1, 1, 1], [0, 1, 0], [1, 0, 1]]


def test_a_prediction_beyond_the_classes_seen_is_wrong_and_in_no_column():
    found = evaluate(predictions((0, 5, 0), (0, 0, 0), (1, 3, 1), (2, 2, 2)), two_tasks(3, 1))
    assert found.accuracies == [1 / 3, 1.0]
    assert found.task_aware == [1.0, 1.0]
    assert found.confusion == [[1, 0, 0], [0, 0, 0], [0, 0, 1]]


def test_the_order_of_a_tasks_images_does_not_matter():
    first, second = [(0, 0, 0), (1, 1, 1), (0, 2, 1)], [(2, 0, 2), (2, 2, 2)]
    tasks = two_tasks(3, 2)
    assert evaluate(predictions(*first, *second), tasks) == evaluate(
        predictions(*reversed(first), *reversed(second)), tasks
    )


def test_tasks_with_the_same_classes_are_evaluated_apart():
    tasks = [Task(0, 0, 2, None, range(3), num_base=2), Task(1, 2, 0, None, range(2), num_base=2)]
    found = evaluate(predictions((0, 0, 0), (1, 1, 1), (1, 0, 0), (0, 1, 1), (1, 1, 1)), tasks)
    assert found.accuracies == [2 / 3, 1 / 2]
    assert found.confusion == [[1, 1], [1, 2]]


@pytest.fixture
def learned(lab):
    """Two tasks of three, learned by a solver whose head has all classes."""

    def make(argmax="all"):
        options = {"head": {"growth": "fixed"}, "fidelity": {"argmax": argmax}, "embedding": None}
        laboratory = lab("gfr", options, lr=0.01, epochs=3)
        laboratory.learn(0, 1)
        return laboratory

    return make


def images_of(tasks):
    first, *others = (task.test for task in tasks)
    return first.join(others)


def evaluation_pass(laboratory, tasks, classifier=None, **options):
    method = laboratory.method
    classifier = classifier or method.classifier()
    batches = method.pass_batches("evaluation", images_of(tasks))
    return predictions_pass(batches, classifier, method.task_sizes, **options)


@pytest.mark.parametrize("argmax", ["seen", "all"])
def test_the_pass_predicts_as_the_solver_does_image_by_image(learned, argmax, disturb):
    laboratory = learned(argmax)
    method, tasks = laboratory.method, laboratory.scenario.tasks[:2]
    (block,) = disturb(method.solver.head, scale=1.0).blocks
    found = method.features_pass("features", images_of(tasks))
    features = laboratory.engine.run_pass(found)["features"]
    block.bias.data = -block.weight.data @ features.mean(0)  # so that predictions are many and various
    found = laboratory.engine.run_pass(evaluation_pass(laboratory, tasks))

    expected, competing = [], 5 if argmax == "seen" else 7
    for task in tasks:
        for pixels, label in zip(task.test.pixels, task.test.labels.tolist(), strict=True):
            inputs = laboratory.preprocess.centered(pixels[None])
            logits = method.solver.eval()(inputs, Need.LOGITS).logits[0].tolist()
            prediction = max(range(competing), key=logits.__getitem__)
            expected.append((label, prediction, max(range(task.num_old, task.num_seen), key=logits.__getitem__)))
    assert list(zip(*(found[name].tolist() for name in ("label", "prediction", "task_aware")), strict=True)) == expected
    assert len({prediction for _, prediction, _ in expected}) > 3
    assert any(prediction >= 5 for _, prediction, _ in expected) is (argmax == "all")

    evaluation = evaluate(found, tasks)
    for index, task in enumerate(tasks):
        own = [row for row in expected if task.num_old <= row[0] < task.num_seen]
        assert evaluation.accuracies[index] == sum(label == prediction for label, prediction, _ in own) / len(own)
        assert evaluation.task_aware[index] == sum(label == within for label, _, within in own) / len(own)
    for true, row in enumerate(evaluation.confusion):
        for column, count in enumerate(row):
            assert count == sum(label == true and prediction == column for label, prediction, _ in expected)
    assert evaluation.images == len(expected)
    right = sum(label == prediction for label, prediction, _ in expected)
    assert evaluation.accuracy == pytest.approx(right / len(expected))


def test_scores_may_be_shifted_and_negative(learned):
    class Shifted(PredictionRule):
        """The same scores, much lower."""

        def __init__(self, rule):
            super().__init__()
            self.rule = rule

        def forward(self, features):
            return self.rule(features) - 1000

        def describe(self):
            return {}

        @classmethod
        def empty(cls, **values):
            raise NotImplementedError

    laboratory = learned("seen")
    tasks, plain, shifted = (
        laboratory.scenario.tasks[:2],
        laboratory.method.classifier(),
        laboratory.method.classifier(),
    )
    shifted.rule = Shifted(HeadRule(laboratory.method.solver.head, 5))
    found = [laboratory.engine.run_pass(evaluation_pass(laboratory, tasks, c)) for c in (plain, shifted)]
    assert all(torch.equal(found[0][name], found[1][name]) for name in ("prediction", "task_aware"))


def test_the_pass_returns_log_probabilities_where_they_are_asked_for(learned):
    laboratory = learned("seen")
    tasks = laboratory.scenario.tasks[:2]
    found = laboratory.engine.run_pass(evaluation_pass(laboratory, tasks, scores=True))
    inputs = laboratory.preprocess.centered(images_of(tasks).pixels)
    with torch.no_grad():
        torch.testing.assert_close(found["scores"], laboratory.method.classifier().eval()(inputs))
    torch.testing.assert_close(found["scores"].exp().sum(1), torch.ones(len(inputs)))
    assert "scores" not in laboratory.engine.run_pass(evaluation_pass(laboratory, tasks))


def test_features_are_those_of_the_images_in_order(learned):
    laboratory = learned()
    images = laboratory.scenario.tasks[0].test
    found = laboratory.engine.run_pass(laboratory.method.features_pass("features", images))
    assert torch.equal(found["labels"], images.labels)
    alone = [laboratory.preprocess.centered(pixels[None]) for pixels in images.pixels]
    expected = torch.cat([laboratory.method.solver(inputs, Need.FEATURE).feature for inputs in alone])
    torch.testing.assert_close(found["features"], expected)
    assert not found["features"].requires_grad


def test_evaluation_changes_nothing(learned, snapshot):
    laboratory = learned()
    before = snapshot(laboratory.method.solver)
    data_pass = evaluation_pass(laboratory, laboratory.scenario.tasks[:1])
    first, again = laboratory.engine.run_pass(data_pass), laboratory.engine.run_pass(data_pass)
    assert all(torch.equal(first[name], again[name]) for name in first)
    after = laboratory.method.solver.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in after.items())


def test_an_evaluation_can_be_stored_without_its_confusion_matrix():
    found = evaluate(predictions((0, 0, 0), (1, 0, 1), (2, 2, 2)), two_tasks(2, 1))
    short = found.without_confusion()
    assert short.confusion == []
    assert (short.accuracies, short.task_aware, short.images, short.accuracy) == (
        found.accuracies,
        found.task_aware,
        3,
        pytest.approx(2 / 3),
    )
