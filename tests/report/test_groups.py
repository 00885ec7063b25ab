from pathlib import Path

import pytest

from etag.core.errors import EtagError
from etag.report.groups import check_comparable, check_reference, group_runs, representatives
from etag.report.records import read_run
from etag.report.results import results_table


@pytest.fixture
def group(make_run):
    """A group of runs given as (method, seed, A_weighted), each in a directory of its own."""

    def make(*runs, **changes):
        paths = [
            make_run(f"{number}-{method}", method=method, seed=seed, optional=False, A_weighted=a, **changes)
            for number, (method, seed, a) in enumerate(runs)
        ]
        return group_runs([read_run(path) for path in paths], "digits b5-5x1")

    return make


def test_runs_that_differ_in_the_seed_only_are_one_row(group):
    found = group(("etag", 1, 0.5), ("fine", 0, 0.1), ("etag", 0, 0.7))
    assert {label: member.seeds for label, member in found.members.items()} == {"fine": [0], "etag": [0, 1]}


@pytest.mark.parametrize(
    ("folder", "label"),
    [
        ("etag-seed3", "etag"),
        ("etag-3", "etag"),
        ("etag-tau1-seed3", "etag-tau1"),
        ("etag-tau1-3", "etag-tau1"),
        ("etag-lr5", "etag-lr5"),
        ("etag-digits-b5-5x1-seed3", "etag"),
        ("some name", "etag"),
        ("etagged", "etag"),
    ],
)
def test_labels_come_from_the_names_of_directories(make_run, folder, label):
    found = group_runs([read_run(make_run(folder, seed=3, optional=False))], "title")
    assert list(found.members) == [label]


def test_the_curve_and_bar_are_means_over_seeds(make_run):
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
    (member,) = group_runs([read_run(run) for run in runs], "title").members.values()
    curve, bar = member.curve(style=None), member.bar(style=None)
    assert curve.values == pytest.approx([1.0, 0.5])
    assert curve.deviations == pytest.approx([0.0, 0.02**0.5])
    assert bar.seconds == pytest.approx([10.0, 20.5])


def ranks(group, metric):
    table = results_table(group)
    place = next(n for n, column in enumerate(table.columns) if column.name.startswith(metric))
    return {row.cells[0].text: row.cells[place].rank for row in table.rows}


def test_the_best_is_marked_but_never_a_bound(group):
    found = group(("fine", 0, 0.2), ("etag", 0, 0.7), ("lwf", 0, 0.700001), ("gfr", 0, 0.5), ("joint", 0, 0.9))
    assert ranks(found, "A_weighted") == {"Joint": 0, "Fine": 0, "LwF": 1, "GFR": 2, "eTag": 1}


def test_forgetting_is_best_when_low(make_run):
    runs = [make_run(m, method=m, F_paper=f, optional=False) for m, f in (("lwf", 0.9), ("etag", -0.01))]
    assert ranks(group_runs([read_run(run) for run in runs], "title"), "F_paper") == {"LwF": 2, "eTag": 1}


def test_a_value_that_is_no_number_is_not_ranked(group):
    found = group(("lwf", 0, float("nan")), ("gfr", 0, 0.5), ("etag", 0, 0.6))
    assert ranks(found, "A_weighted") == {"LwF": 0, "GFR": 2, "eTag": 1}


def test_one_method_alone_is_not_the_best(group):
    found = group(("etag", 0, 0.7), ("joint", 0, 0.9))
    assert not any(cell.rank for row in results_table(found).rows for cell in row.cells)


def test_runs_of_one_seed_are_named_after_their_directories(group):
    found = group(("etag", 0, 0.6), ("etag", 0, 0.7), ("fine", 0, 0.1))
    assert [member.title for member in found.members.values()] == ["Fine", "eTag (0-etag)", "eTag (1-etag)"]


def test_figures_of_single_runs_use_a_seed_that_all_have(group):
    found = group(("fine", 0, 0.1), ("fine", 1, 0.1), ("etag", 1, 0.7), ("etag", 2, 0.7))
    chosen = representatives(list(found.members.values()))
    assert [(title, run.metrics.seed) for title, run in chosen] == [("Fine, seed 1", 1), ("eTag, seed 1", 1)]


def test_of_many_methods_those_that_the_paper_shows_are_shown_in_detail(group):
    names = ["a", "b", "c", "d", "e", "f", "gfr", "etag"]
    assert [m.label for m in group(*((name, 0, 0.5) for name in names)).detailed] == ["gfr", "etag"]


def test_of_many_unknown_methods_the_best_are_shown_in_detail(group):
    found = group(*((name, 0, n / 10) for n, name in enumerate("abcdefgh")))
    assert [member.label for member in found.detailed] == ["h", "g", "f", "e"]


def test_the_reference_is_etag_if_nothing_else_is_named(group):
    assert group(("etag", 0, 0.1), ("gfr", 0, 0.6)).reference(None).label == "etag"


def test_without_etag_the_best_that_competes_is_the_reference(group):
    assert group(("lwf", 0, 0.3), ("gfr", 0, 0.6), ("joint", 0, 0.9)).reference(None).label == "gfr"


def test_any_method_can_be_the_reference_by_name_or_title(group):
    found = group(("etag", 0, 0.1), ("gfr", 0, 0.6))
    assert found.reference("gfr") is found.reference("GFR") is found.members["gfr"]
    assert found.reference("lwf") is None
    with pytest.raises(EtagError, match=r"no run of the reference 'lwf': choose one of gfr, etag\.$"):
        check_reference([found], "lwf")


def test_other_data_or_splits_are_refused(make_run):
    runs = [make_run("a"), make_run("b", classes=(2, 2), split="b0-2x2")]
    with pytest.raises(EtagError, match=r"same data and split can be compared: .*digits b5-5x1.*digits b0-2x2"):
        check_comparable([read_run(run) for run in runs])


def test_nothing_to_compare_is_an_error():
    with pytest.raises(EtagError, match="nothing to compare"):
        check_comparable([])


def test_a_run_given_twice_is_refused(make_run):
    run = read_run(make_run())
    other = type(run)(
        Path(f"{run.path}/../{run.path.name}"), *[getattr(run, n) for n in ("metrics", "config", "steps", "generated")]
    )
    with pytest.raises(EtagError, match="given twice"):
        group_runs([run, other], "title")


@pytest.mark.parametrize(
    ("model", "column"),
    [
        ("", "cifar100-5"),
        ("model: {weights: null}\n", "cifar100-5"),
        ("model: {weights: some.pth}\n", None),
        ("[", "cifar100-5"),
    ],
)
def test_only_networks_from_scratch_stand_beside_the_papers_numbers(make_run, model, column):
    path = make_run(data="cifar100", split="b50-5x10", optional=False)
    config = path / "config.yaml"
    config.write_text(config.read_text() + model)
    assert group_runs([read_run(path)], "title").column == column


def test_what_several_methods_say_is_printed_once(group):
    said = {"features": "a frozen backbone", "penalty": "10"}
    notes = results_table(group(("ridge", 0, 0.5), ("ncm", 0, 0.4), ("ridge", 1, 0.6), remarks=said)).notes
    assert "Features: a frozen backbone (NCM, Ridge)." in notes
    assert "Penalty: 10 (NCM, Ridge)." in notes
