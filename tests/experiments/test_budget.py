"""A grid compares methods that are trained alike and searched alike, or says what differs."""

import pytest
from tests.experiments.test_grid import grid_file, names

from etag.core.errors import EtagError
from etag.experiments import recipes
from etag.experiments.budget import budget
from etag.experiments.config import resolve
from etag.experiments.grid import Grid

SEARCH = {"over": {"train.lr": [1e-3, 3e-3]}, "split": "b1-1x1", "classes": 2}


def planned(tmp_path, **content):
    return Grid.load(grid_file(tmp_path, **content)).all_runs()


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        ({"train.epochs": 2}, "train.epochs in the base task is 1 for fine; 2 for lwf"),
        ({"train.base.epochs": 3}, "train.epochs in the base task is 1 for fine; 3 for lwf"),
        ({"train.length_factor": 2.0}, "train.epochs in the base task is 1 for fine; 2 for lwf"),
        ({"train.schedule": "cosine"}, "train.schedule in the base task is 'onecycle' for fine; 'cosine' for lwf"),
        ({"train.batch_size": 8}, "train.batch_size in the base task is 16 for fine; 8 for lwf"),
        ({"data.train_per_class": 20}, "data.train_per_class is 16 for fine; 20 for lwf"),
        ({"data.held_out": 0.5}, "data.held_out is 0.0 for fine; 0.5 for lwf"),
    ],
)
def test_methods_that_are_not_trained_alike_are_refused(tmp_path, settings, option):
    common = {"recipe": "digits", "splits": ["b2-1x2"], "seeds": [0]}
    usual = Grid.load(grid_file(tmp_path)).blocks[0].settings
    blocks = [common | {"methods": ["fine"]}, common | {"methods": ["lwf"], "settings": usual | settings}]
    with pytest.raises(EtagError) as refused:
        planned(tmp_path, runs=blocks)
    assert option in str(refused.value)
    assert "on b2-1x2" in str(refused.value)


def test_a_preset_that_changes_lengths_of_some_methods_is_refused(tmp_path):
    (tmp_path / "longer.yaml").write_text("with_embedding: {train: {base: {length_factor: 3}}}")
    preset = str(tmp_path / "longer.yaml")
    assert planned(tmp_path, methods=["etag", "elwf"], preset=preset)
    with pytest.raises(EtagError, match=r"train\.epochs in the base task is 1 for lwf; 3 for etag"):
        planned(tmp_path, methods=["lwf", "etag"], preset=preset)


def test_what_is_chosen_per_method_and_what_a_variant_names_may_differ(tmp_path):
    variants = {"": {}, "long": {"train.epochs": 2}, "fast": {"train.lr": 1e-2}}
    assert len(planned(tmp_path, methods=["fine", "lwf"], variants=variants)) == 6


def test_all_methods_with_embedding_distillation_see_as_many_views(tmp_path):
    one = {"recipe": "digits", "splits": ["b2-1x2"], "seeds": [0]}
    usual = Grid.load(grid_file(tmp_path)).blocks[0].settings
    fewer = one | {"methods": ["etag"], "settings": usual | {"method.embedding.views_per_image": 1}}
    with pytest.raises(EtagError, match=r"views_per_image is None for elwf; 1 for etag"):
        planned(tmp_path, runs=[one | {"methods": ["elwf"]}, fewer])
    assert len(planned(tmp_path, runs=[one | {"methods": ["fine"]}, fewer])) == 2


def test_a_search_tries_values_of_each_method(tmp_path):
    own = {"methods": {"lwf": {"method.weight": [1, 10]}, "fine": {"train.lr": [1e-4, 1e-3, 3e-3, 1e-2]}}}
    search = SEARCH | own | {"settings": {"train": {"epochs": 3}}}
    runs = planned(tmp_path, methods=["lwf", "elwf", "fine"], search=search)
    tried = {name.removeprefix("search/b1-1x1/") for name in names(runs) if name.startswith("search/")}
    assert tried == {
        *(f"{m}-lr={lr},weight={w}-seed0" for m in ("lwf", "elwf") for lr in (0.001, 0.003) for w in (1, 10)),
        *(f"fine-lr={lr}-seed0" for lr in (0.0001, 0.001, 0.003, 0.01)),
    }
    assert {run.config.train.epochs for run in runs if run.name.startswith("search/")} == {3}
    assert {run.config.train.epochs for run in runs if not run.name.startswith("search/")} == {1}


def test_methods_that_are_searched_with_more_trials_are_refused(tmp_path):
    search = SEARCH | {"methods": {"lwf": {"method.weight": [1, 10]}}}
    with pytest.raises(EtagError, match="different numbers of trials: 2 for fine; 4 for lwf"):
        planned(tmp_path, methods=["fine", "lwf"], search=search)


def test_trials_count_for_the_comparison_that_they_are_for(tmp_path):
    """A method may be searched again for other splits, but not twice for the same."""
    again = {"recipe": "digits", "seeds": [0], "search": SEARCH | {"split": "b1-2x1", "classes": 3}}
    both = {"recipe": "digits", "seeds": [0], "search": SEARCH, "splits": ["b2-1x2"], "methods": ["fine", "lwf"]}
    runs = planned(tmp_path, runs=[both, again | {"splits": ["b3-1x1"], "methods": ["lwf"]}])
    assert len([name for name in names(runs) if name.startswith("search/")]) == 6
    with pytest.raises(EtagError, match="different numbers of trials: 2 for fine; 4 for lwf"):
        planned(tmp_path, runs=[both, again | {"splits": ["b2-1x2"], "methods": ["lwf"], "variants": {"x": {}}}])


def test_a_method_that_has_nothing_to_choose_is_not_searched(tmp_path):
    search = {"split": "b1-1x1", "classes": 2, "methods": {"lwf": {"method.weight": [1, 10]}}}
    assert names(planned(tmp_path, methods=["fine", "lwf"], search=search)) == [
        "search/b1-1x1/lwf-weight=1-seed0",
        "search/b1-1x1/lwf-weight=10-seed0",
        "b2-1x2/fine-seed0",
        "b2-1x2/lwf-seed0",
    ]


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"methods": {"lwff": {"method.weight": [1]}}}, "'lwff', which is none of the block's methods"),
        ({"methods": {"fine": {"train.lr": []}}}, "at least 1 item"),
        ({"over": {"train.lr": []}}, "at least 1 item"),
    ],
)
def test_a_search_that_would_try_nothing_for_somebody_is_refused(tmp_path, search, message):
    with pytest.raises(EtagError, match=message):
        planned(tmp_path, methods=["fine", "lwf"], search={"split": "b1-1x1", "classes": 2} | search)


def test_a_search_may_try_what_is_otherwise_the_budget_if_it_does_so_for_all(tmp_path):
    search = {"over": {"train.weight_decay": [0.0, 1e-3]}, "split": "b1-1x1", "classes": 2}
    assert len(planned(tmp_path, methods=["fine", "gfr"], search=search)) == 2 * 2 + 2


def test_a_search_for_nothing_is_refused(tmp_path):
    with pytest.raises(EtagError, match="there is nothing to try"):
        planned(tmp_path, search={"split": "b1-1x1", "classes": 2, "methods": {"lwf": {}}})


@pytest.mark.parametrize("name", recipes.grids())
def test_packaged_grids_train_all_methods_alike(name):
    groups = {}
    for run in Grid.load(name).all_runs():
        if not run.own and not run.name.startswith("adapted/"):
            groups.setdefault(run.label.rpartition("/")[0], []).append(budget(run.config))
    for budgets in groups.values():
        for option in {option for each in budgets for option in each}:
            assert len({repr(each[option]) for each in budgets if option in each}) == 1, option


def test_the_budget_is_what_a_run_really_does():
    config = resolve("digits", {"method": "etag", "train.base.epochs": 7, "train.length_factor": 2.0})
    assert budget(config)["train.epochs in the base task"] == config.train.for_task(0).epochs == 14
    assert "train.lr in later tasks" not in budget(config)
