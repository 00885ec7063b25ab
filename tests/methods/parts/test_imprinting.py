import math

import pytest
import torch

from etag.core.outputs import Need
from etag.core.random import Stream
from etag.methods.parts.imprinting import centers


def numbers(*shape, key="a"):
    return torch.randn(*shape, generator=Stream.root(0).torch_generator(key, *shape))


def unit(row):
    length = math.sqrt(sum(value * value for value in row))
    return [value / length for value in row]


def mean_direction(features):
    rows = [unit(row) for row in features.tolist()]
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


# -- centers ---------------------------------------------------------------------------------------


def test_one_center_is_the_mean_of_directions():
    features = torch.tensor([1.0, 10.0, 0.1, 3.0])[:, None] * numbers(4, 3)
    found = centers(features, 1, seed=0)
    assert found.shape == (1, 3)
    assert found[0].tolist() == pytest.approx(mean_direction(features), rel=1e-5)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_several_centers_are_those_of_clusters_of_directions(seed):
    axes = torch.eye(4)[:3]
    near = 0.05 * numbers(12, 4)
    lengths = 1 + 9 * torch.rand(12, 1, generator=Stream.root(0).torch_generator("lengths"))
    features = lengths * (axes.repeat(4, 1) + near)  # rows 0, 3, 6, 9 belong together, and so on
    found = centers(features, 3, seed)
    expected = [mean_direction(features[first::3]) for first in range(3)]
    in_order = found[found.argmax(1).argsort()]
    assert in_order.tolist() == [pytest.approx(row, abs=1e-5) for row in expected]
    assert found.dtype == features.dtype


def test_a_seed_gives_the_same_centers_again():
    features = numbers(40, 4)
    assert torch.equal(centers(features, 5, seed=3), centers(features, 5, seed=3))
    assert len(centers(features, 5, seed=3).unique(dim=0)) == 5


@pytest.mark.parametrize("images", [1, 2, 3])
def test_where_images_are_fewer_than_centers_some_stand_twice(images):
    features = numbers(images, 4)
    found = centers(features, 3, seed=0)
    for place, row in enumerate(found.tolist()):
        assert row == pytest.approx(unit(features[place % images].tolist()), rel=1e-5)
    assert len(found) == 3


# -- imprint ---------------------------------------------------------------------------------------


@pytest.fixture
def about_to_learn(lab, disturb):
    """A laboratory at its second task with a disturbed solver, and that task's plan."""

    def make(name, options):
        laboratory = lab(name, options)
        laboratory.begin(0)
        disturb(laboratory.method.solver)
        laboratory.begin(1)
        return laboratory, laboratory.method.phases(laboratory.task(1))

    return make


def imprinted(laboratory, plan, snapshot):
    """The head as it was before and is after the plan's first pass."""
    before = snapshot(laboratory.method.solver.head)
    data_pass = next(plan)
    assert data_pass.name == "imprint"
    plan.send(laboratory.engine.run_pass(data_pass))
    return before, laboratory.method.solver.head.state_dict()


def features_by_class(laboratory):
    """Of the second task, by the solver as it is, without chance."""
    images = laboratory.task(1).train
    with torch.no_grad():
        features = laboratory.method.solver.eval()(laboratory.preprocess.centered(images.pixels), Need.FEATURE).feature
    return [features[images.labels == label] for label in (3, 4)]


METHODS = {"lucir": {}, "podnet": {"head": {"proxies": 3}}}


@pytest.mark.parametrize("name", METHODS)
def test_only_the_last_block_is_imprinted_as_long_as_old_rows_are_in_the_mean(about_to_learn, snapshot, name):
    laboratory, plan = about_to_learn(name, METHODS[name])
    before, after = imprinted(laboratory, plan, snapshot)
    assert {key for key in before if not torch.equal(before[key], after[key])} == {"blocks.1.weight"}
    lengths = [math.hypot(*row) for row in before["blocks.0.weight"].tolist()]
    mean = sum(lengths) / len(lengths)
    assert [math.hypot(*row) for row in after["blocks.1.weight"].tolist()] == pytest.approx(
        [mean] * len(after["blocks.1.weight"]), rel=1e-5
    )


def test_lucirs_rows_point_to_the_mean_of_their_classs_directions(about_to_learn, snapshot):
    laboratory, plan = about_to_learn("lucir", {})
    _, after = imprinted(laboratory, plan, snapshot)
    for row, features in zip(after["blocks.1.weight"].tolist(), features_by_class(laboratory), strict=True):
        assert unit(row) == pytest.approx(unit(mean_direction(features)), abs=1e-4)


def test_podnets_proxies_stand_side_by_side_and_belong_to_their_class(about_to_learn, snapshot):
    laboratory, plan = about_to_learn("podnet", {"head": {"proxies": 10}})  # of eight images per class
    _, after = imprinted(laboratory, plan, snapshot)
    rows = after["blocks.1.weight"].tolist()
    for place, features in enumerate(features_by_class(laboratory)):
        for number in range(10):
            assert unit(rows[10 * place + number]) == pytest.approx(unit(features[number % 8].tolist()), abs=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_nothing_is_imprinted_at_the_base_task_or_where_it_is_switched_off(lab, name):
    laboratory = lab(name, METHODS[name])
    laboratory.begin(0)
    assert "imprint" not in laboratory.works(0)
    without = lab(name, METHODS[name] | {"imprint": False, "exemplars": {"per_class": 2}})
    without.learn(0)
    without.begin(1)
    assert "imprint" not in without.works(1)
