import pytest

from etag.report.groups import group_runs
from etag.report.headline import headline
from etag.report.records import read_run


@pytest.fixture
def sentence(make_run):
    """The headline of methods with these values of A, one per seed."""

    def make(**accuracies):
        runs = [
            read_run(make_run(f"{label}-seed{seed}", method=label, seed=seed, optional=False, A_weighted=a))
            for label, values in accuracies.items()
            for seed, a in enumerate(values)
        ]
        return headline(group_runs(runs, "title"))

    return make


def test_a_winner_is_named_if_all_intervals_exclude_zero(sentence):
    # differences to GFR: 4, 5, 6 points, so 5 ± 4.303 / sqrt(3)
    found = sentence(etag=(0.64, 0.65, 0.66), gfr=(0.6, 0.6, 0.6), fine=(0.1, 0.1, 0.1))
    assert found == (
        "eTag is ahead of every other method: it reaches 65.0 ± 1.0 %, 5.0 points above GFR (95 % interval 2.5 to 7.5)."
    )


def test_no_winner_is_named_if_one_interval_includes_zero(sentence):
    found = sentence(etag=(0.6, 0.7, 0.8), gfr=(0.69, 0.6, 0.69), lwf=(0.3, 0.31, 0.29))
    assert found == (
        "eTag has the highest A, 70.0 ± 10.0 %, but it is not clearly better than GFR: the 95 % interval of its "
        "difference to GFR includes zero."
    )


def test_every_row_counts_not_only_the_next_best(sentence):
    # GFR is next and clearly behind; LwF is further behind on average, but its interval includes zero
    found = sentence(etag=(0.7, 0.7, 0.7), gfr=(0.65, 0.65, 0.651), lwf=(0.4, 0.72, 0.6))
    assert found.startswith("eTag has the highest A, 70.0 ± 0.0 %, but it is not clearly better than LwF: ")


def test_variants_and_methods_with_exemplars_count_too(make_run):
    values = {"etag": (0.7, 0.7), "etag-refit": (0.71, 0.69), "lucir": (0.72, 0.66)}
    runs = [
        read_run(make_run(f"{label}-seed{s}", method=label.split("-")[0], seed=s, optional=False, A_weighted=a))
        for label, both in values.items()
        for s, a in enumerate(both)
    ]
    assert "it is not clearly better than eTag (refit) and Lucir" in headline(group_runs(runs, "title"))


def test_one_seed_names_no_winner(sentence):
    assert sentence(etag=(0.7,), fine=(0.1,)) == (
        "eTag has the highest A, 70.0 %, but two or more shared seeds are needed to say whether it is better than Fine."
    )


def test_a_method_that_trains_on_all_data_is_no_rival(sentence):
    found = sentence(joint=(0.9, 0.9), etag=(0.7, 0.71), fine=(0.2, 0.21))
    assert found.startswith("eTag is ahead of every other method: it reaches 70.5 ± 0.7 %")
    assert found.endswith(" Joint, trained on the data of all tasks, reaches 90.0 ± 0.0 %.")


def test_of_many_methods_the_first_are_named_and_the_others_counted(sentence):
    found = sentence(**{name: (0.9 - place / 100,) for place, name in enumerate("abcdefghij")})
    assert "whether it is better than b, c, d, e, f and 4 others." in found


def test_one_method_has_nothing_to_be_compared_with(sentence):
    assert sentence(gfr=(0.7,)) == "GFR reaches 70.0 %."
    assert sentence(joint=(0.7,)) == "Joint, trained on the data of all tasks, reaches 70.0 %."
