"""What methods with a head in closed form share: exact after any order of tasks, exact updates, forgetting."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.models.test_familiarity import naive

from etag.core.errors import EtagError
from etag.data.images import Features
from etag.methods.abilities import CanForget, CanUpdate, MeasuresFamiliarity
from etag.methods.parts.statistics import shrunk
from etag.models.prediction import MahalanobisRule

NAMES = ["ncm", "slda", "ridge", "ranpac", "fecam"]
FROZEN = {"model.train": "head"}


@pytest.fixture
def frozen(lab):
    """frozen(name, options, split) -> a small method whose backbone keeps its first weights."""

    def make(name, options=None, split="b3-2x2", **more):
        given = {"projection": 12} if name == "ranpac" else {}
        made = lab(name, given | (options or {}), split=split, **more)
        made.context = replace(made.context, model=made.context.model.model_copy(update={"train": "head"}))
        made.method = type(made.method)(made.method.options, made.context)
        return made

    return make


def exact(made, task):
    """The task with features in place of images, each computed on its own: batches do not change its rounding."""
    with torch.no_grad():
        images = made.preprocess.centered(task.train.pixels)
        matrix = torch.cat([made.method.solver.backbone.eval()(image[None]) for image in images])
    return replace(task, train=Features(matrix, torch.arange(len(matrix)), task.train.labels))


def assert_close(found, expected):
    """Compare everything that two methods computed from their statistics."""
    for part in ("rule", "familiarity"):
        tensors, others = whole(getattr(found.method, part)), whole(getattr(expected.method, part))
        for key, value in others.items():
            torch.testing.assert_close(tensors[key], value, rtol=1e-6, atol=1e-6)


def whole(part):
    """The tensors of a part; the factors of a matrix are not unique, so the matrix itself stands for them."""
    return {"means": part.means, "inverses": inverses(part)} if isinstance(part, MahalanobisRule) else part.state_dict()


def inverses(rule):
    """The inverse covariances as whole matrices."""
    return torch.stack([torch.diag(s) - (b * w) @ b.T for s, b, w in rule.inverses()])


def scores(made, tasks):
    images = made.learner.test_images(made.scenario.tasks[:tasks])
    batches = made.method.pass_batches("test", images)
    with torch.no_grad():
        return torch.cat([made.method.classifier().eval()(batch.inputs) for batch in batches.epoch(0)])


@pytest.mark.parametrize("name", NAMES)
def test_task_by_task_equals_all_at_once(frozen, name):
    options = {"penalty": 10.0} if name in ("ridge", "ranpac") else {}
    by_task, at_once = frozen(name, options), frozen(name, options, split="b0-1x7")
    for index in range(3):
        by_task.learner.train(exact(by_task, by_task.task(index)))
    at_once.learner.train(exact(at_once, at_once.task(0)))
    assert len(by_task.method.task_sizes) == 3
    assert_close(by_task, at_once)


@pytest.mark.parametrize("name", NAMES)
def test_how_familiar_an_image_is_does_not_depend_on_the_order_of_lessons(frozen, name):
    options = {"penalty": 10.0} if name in ("ridge", "ranpac") else {}
    by_task, at_once = frozen(name, options), frozen(name, options, split="b0-1x7")
    for index in range(3):
        by_task.learner.train(exact(by_task, by_task.task(index)))
    at_once.learner.train(exact(at_once, at_once.task(0)))
    images = at_once.preprocess.centered(at_once.task(0).test.pixels)
    with torch.no_grad():
        (_, one), (_, other) = (made.method.classifier().eval().predict(images) for made in (by_task, at_once))
    assert len(one.unique()) > 7
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6 * other.abs().max().item())


@pytest.mark.parametrize("name", NAMES)
def test_familiarity_is_measured_where_the_statistics_are(frozen, name):
    made = frozen(name, images=20)
    made.learn(0, 1)
    assert isinstance(made.method, MeasuresFamiliarity)
    task = made.task(1)
    features = exact(made, task).train.matrix
    x, s = made.method.rule.transformed(features.double()), made.method.statistics
    covariance = shrunk(s.scatter / (s.count.sum() - 5), 0.5)
    classifier = made.method.classifier().eval()
    with torch.no_grad():
        _, found = classifier.predict(features)
    np.testing.assert_allclose(found, naive(x, s.means, s.count, covariance), rtol=1e-3, atol=1e-2)


def test_methods_without_class_statistics_do_not_measure_it(lab):
    assert not isinstance(lab("fine").method, MeasuresFamiliarity)


@pytest.mark.parametrize("name", NAMES)
def test_more_images_of_known_classes_are_as_if_they_had_been_there(frozen, name):
    options = {"penalty": 10.0} if name in ("ridge", "ranpac") else {}
    whole, in_two = frozen(name, options), frozen(name, options)
    whole.learner.train(exact(whole, whole.task(0)))
    task = exact(in_two, in_two.task(0))
    half = torch.arange(len(task.train)) % 2 == 0
    first, second = (replace(task, train=task.train.select(rows.nonzero().flatten())) for rows in (half, ~half))
    in_two.learner.train(first)
    assert isinstance(in_two.method, CanUpdate)
    update = replace(second, index=1, num_old=3, num_new=0)
    in_two.learner.train(update, update_number=1)
    assert_close(in_two, whole)


@pytest.mark.parametrize("name", NAMES)
def test_a_class_is_forgotten_exactly_with_moments_per_class(frozen, name):
    options = {"statistics": "per_class"} | ({"penalty": 10.0} if name in ("ridge", "ranpac") else {})
    forgetting, never = frozen(name, options), frozen(name, options)
    forgetting.learn(0, 1)
    assert isinstance(forgetting.method, CanForget)
    assert forgetting.method.forget(1) == "", "nothing remains of it with a given penalty"
    task = never.task(0)
    others = (task.train.labels != 1).nonzero().flatten()
    labels = torch.tensor([0, 1, 1])[task.train.labels[others]]  # 2 becomes 1
    never.learner.train(replace(task, num_new=2, train=replace(task.train.select(others), labels=labels)))
    later = never.task(1)
    moved = replace(later, num_old=2, train=replace(later.train, labels=later.train.labels - 1))
    never.learner.train(moved)
    assert forgetting.method.task_sizes == [2, 2]
    assert_close(forgetting, never)


@pytest.mark.parametrize("name", NAMES)
def test_forgetting_with_shared_moments_removes_the_class_from_the_answers(frozen, name):
    made = frozen(name, {"statistics": "shared"} | ({"covariance": "tied"} if name == "fecam" else {}))
    made.learn(0, 1)
    assert "in the second moments that all classes share" in made.method.forget(0)
    assert scores(made, 1).shape[1] == 4


@pytest.mark.parametrize("name", [*NAMES, "fetril"])
def test_a_frozen_backbone_sees_each_image_once(frozen, name, monkeypatch):
    made = frozen(name)
    rows, forward = [], type(made.method.solver.backbone).forward

    def counted(self, images):
        if images.ndim == 4:
            rows.append(len(images))
        return forward(self, images)

    monkeypatch.setattr(type(made.method.solver.backbone), "forward", counted)
    learner = made.learner
    for index in range(3):
        learner.train(made.task(index))
        learner.test_images(made.scenario.tasks[: index + 1])
    assert sum(rows) == sum(len(task.train) + len(task.test) for task in made.scenario)


@pytest.mark.parametrize("name", NAMES)
def test_from_scratch_the_backbone_is_trained_on_the_base_task_only(lab, name, snapshot):
    made = lab(name, {"projection": 12} if name == "ranpac" else {}, epochs=2)
    before = snapshot(made.method.solver.backbone)
    made.learn(0)
    after = snapshot(made.method.solver.backbone)
    assert any(not torch.equal(after[key], value) for key, value in before.items())
    made.learn(1, 2)
    assert all(torch.equal(made.method.solver.backbone.state_dict()[key], value) for key, value in after.items())
    assert made.method.sees_features(1)
    assert not made.method.sees_features(0)


def test_the_original_features_are_added(lab):
    made = lab("ncm", {"features": {"source": "base", "original": True}}, epochs=2)
    backbone = made.method.solver.backbone
    first = {key: value.clone() for key, value in backbone.stages.state_dict().items()}
    made.learn(0, 1)
    assert backbone.output_size == 2 * backbone.feature_size == made.method.rule.means.shape[1]
    for key, value in first.items():
        assert torch.equal(backbone.original.state_dict()[key], value), key
    images = made.preprocess.centered(made.task(0).test.pixels)
    with torch.no_grad():
        both = backbone.eval()(images)
        adapted, original = images, images
        for stage, kept in zip(backbone.stages, backbone.original, strict=True):
            adapted, original = stage(adapted), kept(original)
    torch.testing.assert_close(both, torch.cat([adapted.mean((2, 3)), original.mean((2, 3))], dim=1))


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("branches", ["full", "short"])
def test_the_features_of_the_auxiliaries_are_added(lab, original, branches):
    """Each branch behind its stage, with the weights that it has after the base task; the auxiliaries are gone."""
    features = {"source": "base", "branches": True, "original": original}
    made = lab("ncm", {"embedding": {"branches": branches}, "features": features}, epochs=1)
    assert not made.method.solver.auxiliaries, "there are none but during the base task"
    task, trained = made.task(0), []
    made.method.begin_task(task)
    plan = made.method.phases(task)
    made.engine.train(next(plan))
    trained = [{key: value.clone() for key, value in a.state_dict().items()} for a in made.method.solver.auxiliaries]
    assert len(trained) == 3
    result = made.engine.run_pass(next(plan))
    backbone = made.method.solver.backbone
    assert not made.method.solver.auxiliaries
    for branch, weights in zip(backbone.branches, trained, strict=True):
        for key, value in branch.state_dict().items():
            assert torch.equal(value, weights[f"branch.{key}"]), key
    assert backbone.output_size == (4 + original) * backbone.feature_size == result["total"].shape[1]
    maps, expected = made.preprocess.centered(task.test.pixels), []
    with torch.no_grad():
        found = backbone.eval()(maps)
        for number, stage in enumerate(backbone.stages):
            maps = stage(maps)
            if number < 3:
                expected.append(backbone.branches[number](maps).mean((2, 3)))
    size = backbone.feature_size
    torch.testing.assert_close(found[:, : 4 * size], torch.cat([maps.mean((2, 3)), *expected], dim=1))
    trainable = {id(parameter) for parameter in backbone.parameters_to_train}
    assert trainable == {id(parameter) for parameter in backbone.stages.parameters()}


@pytest.mark.parametrize("name", ["gc", "bir"])
def test_methods_on_cached_features_use_all_sets_too(lab, name):
    made = lab(name, {"embedding": {}, "features": {"branches": True, "original": True}}, epochs=1)
    made.learn(0, 1)
    images = made.preprocess.centered(made.task(0).test.pixels)
    with torch.no_grad():
        assert made.method.solver.backbone.eval()(images).shape[1] == 5 * made.method.solver.backbone.feature_size
        assert made.method.classifier().eval()(images).shape == (len(images), 5)


def test_without_branches_nothing_of_the_auxiliaries_is_stored(lab):
    made = lab("fecam", {"embedding": {}}, epochs=1)
    made.learn(0)
    assert not made.method.solver.auxiliaries
    assert not made.method.solver.backbone.branches


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"features": {"source": "weights"}}, "set model.weights"),
        ({"features": {"branches": True}}, r"set method\.embedding"),
        ({"features": {"original": True}}, r"features\.original"),
    ],
)
def test_wrong_options(frozen, options, words):
    with pytest.raises(EtagError, match=words):
        frozen("ncm", options).method.check([3, 2, 2])


def test_features_are_a_set_like_images():
    matrix, labels = torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 0, 1, 0, 1])
    features = Features(matrix, torch.tensor([5, 4, 3, 2, 1, 0]), labels)
    assert [rows[:, 0].tolist() for rows in features.read([torch.tensor([0, 5])])] == [[10.0, 0.0]]
    some = features.select(torch.tensor([1, 2]))
    joined = some.join([features])
    assert len(joined) == 8
    assert next(joined.read([torch.tensor([0, 2])]))[:, 0].tolist() == [8.0, 10.0]
    assert joined.labels.tolist() == [1, 0, *labels.tolist()]
