from pathlib import Path

import pytest

from etag.core.errors import EtagError
from etag.report.comparison import COLUMNS, group, headline, setting, shown, table
from etag.report.records import read_run


@pytest.fixture
def entries(make_run, tmp_path):
    """Entries of runs given as (method, seed, A_weighted), each in a directory of its own."""

    def make(*runs, **changes):
        paths = [
            make_run(f"{number}-{method}", method=method, seed=seed, optional=False, A_weighted=a, **changes)
            for number, (method, seed, a) in enumerate(runs)
        ]
        return group([read_run(path) for path in paths], tmp_path)

    return make


def column(name):
    return [quantity.name for quantity in COLUMNS].index(name)


def test_distances_to_both_bounds(entries):
    found = entries(("joint", 0, 0.843), ("fine", 0, 0.122), ("etag", 0, 0.712))
    assert [entry.name for entry in found] == ["Fine", "eTag", "Joint"]
    assert headline(found) == ["eTag is 59.0 points above Fine and 13.1 below Joint"]
    assert setting(found) == "A_weighted, digits, b5-5x1, seed 0"


def test_every_other_method_gets_a_sentence_the_best_first(entries):
    found = entries(("fine", 0, 0.2), ("lwf", 0, 0.15), ("etag", 0, 0.7))
    assert headline(found) == ["eTag is 50.0 points above Fine", "LwF is 5.0 points below Fine"]


def test_the_bounds_alone(entries):
    assert headline(entries(("fine", 0, 0.2), ("joint", 0, 0.9))) == ["Fine is 70.0 points below Joint"]


def test_without_bounds_the_best_is_set_against_the_next(entries):
    found = entries(("gfr", 0, 0.6), ("lwf", 0, 0.3), ("etag", 0, 0.71))
    assert headline(found) == ["eTag reaches 71.0 %, 11.0 points above GFR"]


def test_one_run_has_nothing_to_be_compared_with(entries):
    assert headline(entries(("joint", 3, 0.9))) == ["Joint reaches 90.0 %"]


def test_seeds_are_paired(entries):
    # differences 40, 50, 60 points: mean 50, sample deviation 10, whatever the seeds do to both
    found = entries(
        *(("etag", seed, a) for seed, a in enumerate((0.5, 0.9, 0.8))),
        *(("fine", seed, a) for seed, a in enumerate((0.1, 0.4, 0.2))),
    )
    assert headline(found) == ["eTag is 50.0 ± 10.0 points above Fine"]
    assert setting(found) == "A_weighted, digits, b5-5x1, seeds 0, 1, 2, mean ± standard deviation"
    assert table(found)[1][column("A_weighted")].text == "73.3 ± 20.8"


def test_other_seeds_can_not_be_paired(entries):
    found = entries(("etag", 0, 0.5), ("etag", 1, 0.7), ("fine", 5, 0.1))
    assert headline(found) == ["eTag is 50.0 points above Fine"]
    assert setting(found).endswith("each method over its own seeds")


def test_the_curve_and_bar_are_means_over_seeds(make_run, tmp_path):
    runs = [
        make_run(
            f"{seed}",
            seed=seed,
            classes=(2, 2),
            split="b0-2x2",
            step_accuracy_weighted=[1.0, last],
            train_seconds=[10.0, 20.0 + seed],
        )
        for seed, last in enumerate((0.4, 0.6))
    ]
    (entry,) = group([read_run(run) for run in runs], tmp_path)
    curve, bar = entry.curve(look=None), entry.bar(look=None)
    assert curve.values == pytest.approx([1.0, 0.5])
    assert curve.deviations == pytest.approx([0.0, 0.02**0.5])
    assert bar.seconds == pytest.approx([10.0, 20.5])


def test_the_best_is_bold_but_never_the_upper_bound(entries):
    found = entries(("fine", 0, 0.2), ("etag", 0, 0.7), ("lwf", 0, 0.7001), ("joint", 0, 0.9), F_weighted=0.3)
    best = {entry.method: cells[column("A_weighted")].best for entry, cells in zip(found, table(found), strict=True)}
    assert best == {"fine": False, "etag": True, "lwf": True, "joint": False}  # 70.0 and 70.0 are equally good
    assert not any(cells[column("parameters")].best for cells in table(found))


def test_forgetting_is_best_when_low(make_run, tmp_path):
    runs = [make_run(m, method=m, F_paper=f, optional=False) for m, f in (("fine", 0.9), ("etag", -0.01))]
    found = group([read_run(run) for run in runs], tmp_path)
    best = {entry.method: cells[column("F_paper")].best for entry, cells in zip(found, table(found), strict=True)}
    assert best == {"fine": False, "etag": True}


def test_one_method_alone_is_not_the_best(entries):
    assert not any(cell.best for row in table(entries(("etag", 0, 0.7), ("joint", 0, 0.9))) for cell in row)


def test_runs_of_one_seed_are_variants_named_after_their_directories(entries):
    found = entries(("etag", 0, 0.6), ("etag", 0, 0.7), ("fine", 0, 0.1))
    assert [entry.name for entry in found] == ["Fine", "eTag (0-etag)", "eTag (1-etag)"]


def test_pictures_are_of_a_seed_that_all_have(entries):
    found = entries(("fine", 0, 0.1), ("fine", 1, 0.1), ("etag", 1, 0.7), ("etag", 2, 0.7))
    assert [(name, run.metrics.seed) for name, run in shown(found)] == [("Fine, seed 1", 1), ("eTag, seed 1", 1)]


def test_other_data_or_splits_are_refused(make_run, tmp_path):
    runs = [make_run("a"), make_run("b", classes=(2, 2), split="b0-2x2")]
    with pytest.raises(EtagError, match=r"same data and split only: .*digits b5-5x1.*digits b0-2x2"):
        group([read_run(run) for run in runs], tmp_path)


def test_nothing_to_compare_is_an_error():
    with pytest.raises(EtagError, match="nothing to compare"):
        group([], Path())
