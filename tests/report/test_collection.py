"""Folders of runs: grouping, tables, agreement with the paper, and the page with its files."""

import csv
import re
from pathlib import Path
from statistics import fmean, stdev

import pytest
from PIL import Image
from tests.report.conftest import write_features, write_run
from tests.report.test_page import check_stands_alone, read
from typer.testing import CliRunner

from etag.cli import app
from etag.core.errors import EtagError
from etag.evaluation.metrics import METRICS, stored_summary
from etag.experiments.grid import Grid
from etag.experiments.paper import published
from etag.report import results, studies
from etag.report.collection import named_runs, read_collection
from etag.report.comparison_page import write_comparison, write_curves

A = {  # by method: A of each seed
    "joint": (0.80, 0.82, 0.81),
    "fine": (0.20, 0.22, 0.21),
    "lwf": (0.40, 0.44, 0.42),
    "elwf": (0.45, 0.41, 0.43),
    "lucir": (0.62, 0.64, 0.63),
    "gfr": (0.55, 0.54, 0.56),
    "etag": (0.60, 0.58, 0.62),
}
STORED = {"backbone": 400, "head": 40}
MAIN, EQUAL = {"split": "b4-2x3", "classes": (4, 3, 3)}, {"split": "b0-2x5", "classes": (5, 5)}


@pytest.fixture
def put_run(tmp_path):
    """A run in the grid's layout: put_run(split, label, seed, **changes)."""

    def put(where, label, seed, **changes):
        path = tmp_path / "mini" / where["split"] / f"{label}-seed{seed}"
        return write_run(path, label.split("-")[0], seed=seed, optional=False, **(where | changes))

    return put


@pytest.fixture
def grid(tmp_path, put_run):
    """A split that stands for a column of the paper, with seven methods."""
    for method, accuracies in A.items():
        for seed, a in enumerate(accuracies):
            stored = STORED | ({"exemplars": 99} if method == "lucir" else {})
            put_run(MAIN, method, seed, A_weighted=a, F_paper=1 - a, stored_bytes_by_part=stored)
    folder = tmp_path / "mini"
    (folder / "grid.yaml").write_text("summary: a <small> grid\npaper: {b4-2x3: cifar100-25}\nmethods: [etag]\n")
    return folder


@pytest.fixture
def parts(grid, put_run):
    """A second split, with baselines and variants."""
    for number, label in enumerate(["b0", "b1", "b2", "b3", "etag-jigsaw", "etag-tau1", "etag-tau5", "etag"]):
        for seed in (0, 1):
            run = put_run(EQUAL, label, seed, A_weighted=0.5 + 0.05 * number + 0.01 * seed)
            (run / "config.yaml").write_text("method: {name: etag, embedding: {tau: 3.0}}\n")
            (run / "command.txt").write_text(f"etag run mine --method {label}\n")
    return grid


def group(folder, split="b4-2x3"):
    return next(g for g in read_collection([folder]).groups if g.metrics.split == split)


def cells(table):
    """Texts by the name of the row, then by heading."""
    return {
        row.cells[0].text: {c.name: cell for c, cell in zip(table.columns[1:], row.cells[1:], strict=True)}
        for row in table.rows
    }


# -- what belongs together ------------------------------------------------------------------------


def test_runs_are_grouped_by_split_and_label(parts):
    main, equal = read_collection([parts]).groups
    assert (main.title, main.column) == ("digits b4-2x3", "cifar100-25")
    assert list(main.members) == ["joint", "fine", "lwf", "elwf", "lucir", "gfr", "etag"]
    assert (equal.title, equal.column) == ("digits b0-2x5", None)
    assert list(equal.members) == ["etag", "b0", "b1", "b2", "b3", "etag-jigsaw", "etag-tau1", "etag-tau5"]
    assert equal.members["etag-tau1"].title == "eTag (tau1)"
    assert equal.members["etag-tau1"].seeds == [0, 1]


def test_runs_of_a_search_and_unfinished_runs_are_left_out(grid, tmp_path):
    write_run(grid / "search" / "b2-1x2" / "etag-seed0", optional=False)
    (grid / "b4-2x3" / "gfr-seed0" / "metrics.json").unlink()
    found = read_collection([grid])
    assert len(found.runs) == 3 * len(A) - 1
    assert [path.name for path in found.unfinished] == ["gfr-seed0"]


def test_the_papers_own_split_needs_no_grid(tmp_path):
    write_run(tmp_path / "etag-seed0", data="cifar100", split="b50-5x10", classes=(50, *[10] * 5), optional=False)
    assert read_collection([tmp_path]).groups[0].column == "cifar100-5"


def test_two_folders_on_one_split_have_different_titles(tmp_path):
    for name in ("one", "two"):
        write_run(tmp_path / name / "etag-seed0", optional=False)
    assert [s.title for s in read_collection([tmp_path]).groups] == ["digits b5-5x1 (one)", "digits b5-5x1 (two)"]


def test_a_run_that_is_named_twice_counts_once(tmp_path):
    run = write_run(tmp_path / "etag-seed0", optional=False)
    assert len(named_runs([run, run, run.parent / "." / run.name]).runs) == 1


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(EtagError, match=r"holds no finished run: there is no metrics\.json in it or below it\.$"):
        read_collection([tmp_path])


def test_runs_of_one_method_and_seed_stand_alone(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, optional=False)
    members = read_collection([tmp_path]).groups[0].members.values()
    assert [member.title for member in members] == ["eTag (a)", "eTag (b)"]


def test_an_unknown_column_of_the_paper_is_refused(grid):
    (grid / "grid.yaml").write_text("paper: {b4-2x3: cifar100-7}\n")
    with pytest.raises(EtagError, match=r"no column 'cifar100-7', only cifar100-5, "):
        read_collection([grid])


def test_planned_runs_that_are_missing_are_listed(grid):
    (grid / "grid.yaml").write_text(
        "preset: fast\nruns:\n"
        "  - {recipe: unknown-here, methods: [etag, gfr, mas], seeds: [0]}\n"
        "  - {recipe: cifar100-cpu-4, methods: [etag], seeds: [2], variants: {'': {}, tau1: {x: 1}}}\n"
        "  - {splits: [b4-2x3, b0-2x5], methods: [lwf]}\n"
    )
    (grid / "b4-2x3" / "lwf-seed2" / "metrics.json").unlink()  # it is unfinished, not missing
    (found,) = read_collection([grid]).grids
    assert found.missing() == [
        "mas-seed0",  # of an unknown recipe the split is unknown: a run of any split counts
        "b0-4x5/etag-seed2",
        "b0-4x5/etag-tau1-seed2",
        *(f"b0-2x5/lwf-seed{seed}" for seed in (0, 1, 2)),
    ]


def test_options_in_the_grid_file_may_be_older_than_this_version(grid):
    (grid / "grid.yaml").write_text("methods: [etag]\nknob_of_old: 1\nsettings: {runtime.gone: true}\n")
    assert read_collection([grid]).grids[0].missing() == []


def test_a_grid_file_that_cannot_be_used_is_named(grid):
    for content in ("runs: {methods: [etag]}", "runs: [3]", "seeds: many", "notice: [1]"):
        (grid / "grid.yaml").write_text(content)
        with pytest.raises(EtagError, match=r"mini/grid\.yaml"):
            read_collection([grid])


def test_a_grid_with_a_notice_can_be_run(tmp_path):
    (tmp_path / "mine.yaml").write_text("notice: Careful.\nrecipe: digits\nmethods: [etag]\n")
    assert Grid.load(str(tmp_path / "mine.yaml")).blocks[0].methods == ["etag"]


def test_the_results_in_this_repository_can_be_read():
    found = read_collection([Path(__file__).parents[2] / "results"])
    assert len(found.runs) > 100
    assert any("No ranking" in notice for notice in found.notices)
    assert all(run.metrics.values for run in found.runs)


# -- tables ---------------------------------------------------------------------------------------


def test_the_results_have_every_metric_and_the_papers_values(grid):
    table = results.results_table(group(grid))
    found = cells(table)
    assert list(found) == ["Joint", "Fine", "LwF", "eLwF", "Lucir ‡", "GFR", "eTag"]
    assert found["LwF"]["A_weighted (%)"].text == "42.00 ± 2.00"
    assert found["LwF"]["F_paper (points)"].text == "58.00 ± 2.00"
    assert found["LwF"]["paper’s A"].text == "16.92 ± 1.21"
    assert {f"{metric.name} ({metric.unit})" for metric in METRICS} <= found["LwF"].keys()
    assert [row.shaded for row in table.rows] == [False, False, False, True, False, False, False]
    assert [row.line_above for row in table.rows] == [False, False, True, False, False, False, False]
    assert any("is a smaller version of the paper’s 25 tasks on cifar100" in note for note in table.notes)


def test_numbers_of_seeds_have_a_column_only_where_they_differ(grid, put_run):
    assert "seeds" not in cells(results.results_table(group(grid)))["LwF"]
    put_run(MAIN, "podnet", 0)
    found = cells(results.results_table(group(grid)))
    assert (found["LwF"]["seeds"].text, found["PODNet"]["seeds"].text) == ("3", "1")
    times = cells(studies.time_table(group(grid), None))
    assert (times["LwF"]["seeds"].text, times["PODNet"]["seeds"].text) == ("3", "1")


def test_the_best_and_the_second_are_marked_but_no_bound(grid):
    found = cells(results.results_table(group(grid)))
    for name in ("A_weighted (%)", "F_paper (points)"):
        assert {title: row[name].rank for title, row in found.items() if row[name].rank} == {"Lucir ‡": 1, "eTag": 2}
    assert not any(row["paper’s A"].rank for row in found.values())


def test_values_that_are_written_alike_are_equally_good(grid, put_run):
    for seed, a in enumerate(A["lucir"]):
        put_run(MAIN, "podnet", seed, A_weighted=a + 1e-6)
    table = results.results_table(group(grid))
    found = cells(table)
    assert [found[name]["A_weighted (%)"].rank for name in ("Lucir ‡", "PODNet", "eTag")] == [1, 1, 2]
    assert table.rows[-1].line_above
    assert found["PODNet"]["paper’s A"].text == "–"


def test_a_doubtful_value_of_the_paper_has_a_dagger(grid, put_run):
    put_run(MAIN, "eewc", 0)
    (grid / "grid.yaml").write_text("paper: {b4-2x3: imagenet-sub-25}\n")
    table = results.results_table(group(grid))
    assert cells(table)["eEWC"]["paper’s F"].text == "10.68 ± 0.41 †"
    assert "† As the paper prints it for eEWC: it repeats the accuracy beside it." in table.notes


def test_agreement_leaves_the_bounds_out(grid):
    ranking = results.ranking(group(grid))
    assert [member.method for member in ranking.members] == ["lwf", "elwf", "lucir", "gfr", "etag"]
    column = published().table1["cifar100-25"]
    assert ranking.theirs == [column[member.method].A for member in ranking.members]
    # ours: LwF < eLwF < GFR < eTag < Lucir; the paper's: LwF < eLwF < Lucir < GFR < eTag: 2 of 10 pairs differ
    assert ranking.agreement.tau == pytest.approx(0.6)
    low, high = ranking.agreement.over_methods
    assert low <= 0.6 <= high


def test_differences_over_seeds(grid):
    main = group(grid)
    found = cells(results.paired_table(main, main.members["etag"]))
    differences = [100 * (a - b) for a, b in zip(A["etag"], A["lucir"], strict=True)]
    mean, margin = fmean(differences), 4.302653 * stdev(differences) / 3**0.5
    row = found["Lucir"]
    assert row["eTag’s A minus its A (points)"].text == "-3.00 ± 2.65"  # of -2, -6, -1
    assert (row["95 % from"].value, row["to"].value) == pytest.approx((mean - margin, mean + margin))
    assert row["shared seeds"].text == "0, 1, 2"
    assert found["GFR"]["eTag’s A minus its A (points)"].text == "+5.00 ± 1.00"


def test_any_method_can_be_the_reference(grid):
    main = group(grid)
    found = cells(results.paired_table(main, main.members["gfr"]))
    assert "GFR" not in found
    assert found["eTag"]["GFR’s A minus its A (points)"].text == "-5.00 ± 1.00"
    times = cells(studies.time_table(main, main.members["gfr"]))
    assert times["GFR"]["share of GFR’s"].text == "1.00"


def test_the_ablation_and_the_self_supervised_tasks(parts):
    equal = group(parts, "b0-2x5")
    found = cells(studies.ablation_table(equal))
    assert list(found) == ["B0", "B1", "B2", "B3", "eTag"]
    assert [cell.text for cell in found["B3"].values()] == ["N", "E", "yes", "no", "65.50 ± 0.71", "61.18"]
    tasks = cells(studies.self_supervised_table(equal))
    assert {name: row["A (%)"].text for name, row in tasks.items()} == {
        "none": "50.50 ± 0.71",
        "jigsaw puzzles": "70.50 ± 0.71",
        "rotations": "85.50 ± 0.71",
    }
    assert tasks["rotations"]["paper’s A"].text == "64.10"
    assert studies.ablation_table(group(parts)) is None
    assert studies.self_supervised_table(group(parts)) is None


def test_runs_by_temperature_with_etags_own_value(parts):
    by_tau = studies.by_temperature(group(parts, "b0-2x5"))
    assert {tau: member.title for tau, member in by_tau.items()} == {1: "eTag (tau1)", 3: "eTag", 5: "eTag (tau5)"}


def test_times_stand_beside_the_papers(grid, put_run):
    seconds = {"train_seconds": [10.0, 20.0], "test_seconds": [1.0, 1.0]}
    put_run(EQUAL, "etag", 0, **seconds, confusion=[[4] + [0] * 9] * 10)
    put_run(EQUAL, "b1", 0, train_seconds=[6.0, 8.0], test_seconds=[1.0, 1.0])
    equal = group(grid, "b0-2x5")
    etag, b1 = studies.time_table(equal, equal.members["etag"]).rows
    # 20 images after the first task, 40 after the second
    assert [c.text for c in etag.cells[1:]] == ["30.0", "2.0", "33.333", "1.00", "12858.18", "13.87"]
    assert [c.text for c in b1.cells[1:]] == ["14.0", "2.0", "2.667", "0.50", "3050.58", "12.12"]


def test_images_tested_are_unknown_if_a_task_has_no_new_class(grid):
    metrics = group(grid).metrics
    assert studies.tested_images(metrics) == 50 * (4 + 7 + 10)
    assert studies.tested_images(metrics.model_copy(update={"classes_per_task": [10, 0, 0]})) is None


def test_sizes_by_part(grid):
    table = studies.size_table(group(grid))
    stored = [place for place, column in enumerate(table.columns) if column.group == "stored"]
    lucir = next(row for row in table.rows if row.cells[0].text == "Lucir")
    assert [table.columns[place].name for place in stored] == ["all", "backbone", "head", "exemplars"]
    assert [lucir.cells[place].value for place in stored] == [539, 400, 40, 99]


def test_generative_methods_stand_beside_the_papers(grid, put_run):
    for method in ("bir", "gc", "etag"):
        put_run(EQUAL, method, 0, A_weighted=0.5)
    found = cells(studies.generative_table(group(grid, "b0-2x5")))
    assert [row["paper’s A"].text for row in found.values()] == ["34.38 ± 0.21", "49.55 ± 0.06", "54.36 ± 0.22"]


# -- the page -------------------------------------------------------------------------------------


def test_the_page_stands_alone_with_its_files_beside_it(parts, tmp_path):
    for method in ("fine", "etag"):
        for task, classes in enumerate((4, 7, 10), start=1):
            write_features(parts / "b4-2x3" / f"{method}-seed0", task, classes)
    out = tmp_path / "out" / "report.html"
    path, found = write_comparison([parts], out)
    page = check_stands_alone(path)
    assert len(found.runs) == 37
    for words in (
        "mini · 37 runs on digits b4-2x3, digits b0-2x5",
        "a <small> grid",
        "Lucir has the highest A, 63.0 ± 1.0 %, but it is not clearly better than eTag",
        "eTag minus each other method",
        "Agreement with the paper",
        "etag bench ../mini/grid.yaml --results ../mini",
        "etag run mine --method etag-tau1",
        "etag run ../mini/b4-2x3/etag-seed0/config.yaml",
        "paper: {b4-2x3: cifar100-25}",
        "torch2.9.0+cpu",
        *(metric.definition for metric in METRICS),
    ):
        assert words in page.text
    html = path.read_text()
    assert "<strong>63.00 ± 1.00</strong>" in html
    assert "<u>60.00 ± 2.00</u>" in html
    assert set(re.findall(r'href="#([^"]+)"', html)) <= set(re.findall(r'id="([^"]+)"', html))
    check_files(out.parent)


def check_files(folder):
    tables = {path.name for path in (folder / "tables").iterdir()}
    names = {name.rpartition(".")[0] for name in tables}
    both = [
        f"{kind}-digits-{split}" for kind in ("results", "paired", "size", "time") for split in ("b4-2x3", "b0-2x5")
    ]
    assert names == {"agreement", "ablation-digits-b0-2x5", "self-supervised-digits-b0-2x5", *both}
    assert tables == {f"{name}.{ending}" for name in names for ending in ("csv", "md", "tex")}
    figures = {path.name for path in (folder / "figures").iterdir()}
    names = {name.rpartition(".")[0] for name in figures}
    assert names >= {
        "accuracy-digits-b4-2x3",
        "accuracy-digits-b0-2x5",
        "agreement-digits-b4-2x3",
        "components-digits-b0-2x5",
        "temperature-digits-b0-2x5",
        "time-digits-b0-2x5",
        *(f"{kind}-{m}-digits-b4-2x3" for kind in ("confusion", "matrix") for m in ("fine", "gfr", "etag", "joint")),
        *(f"tsne-{method}-digits-b4-2x3" for method in ("fine", "etag")),
    }
    assert figures == {f"{name}.{ending}" for name in names for ending in ("csv", "svg", "png")}
    Image.open(folder / "figures" / "agreement-digits-b4-2x3.png").load()
    rows = read_csv(folder / "figures" / "agreement-digits-b4-2x3.csv")
    assert rows[-1] == {"method": "etag", "paper A": "61.63", "our A": "60.0"}
    assert {row["task"] for row in read_csv(folder / "figures" / "tsne-fine-digits-b4-2x3.csv")} == {"1", "2", "3"}


def read_csv(path):
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.mark.parametrize("methods", [["dgr"], ["fine", "mine-big", "mine-small"]])
def test_any_methods_have_results_and_curves(tmp_path, methods):
    for label in methods:
        write_run(tmp_path / "runs" / f"{label}-seed0", label.split("-")[0], optional=False)
    page = read(write_comparison([tmp_path / "runs"], tmp_path / "report.html")[0])
    assert f"Comparison of runs · {len(methods)} run" in page.text
    rows = read_csv(tmp_path / "tables" / "results-digits-b5-5x1.csv")
    assert len(rows) == len(methods)
    assert {f"{metric.name} ({metric.unit})" for metric in METRICS} <= rows[0].keys()
    assert all(row["A_weighted (%)"] and row["F_paper (points)"] and row["last_accuracy (%)"] for row in rows)
    drawn = {row["curve"] for row in read_csv(tmp_path / "figures" / "accuracy-digits-b5-5x1.csv")}
    assert drawn == {row["method"] for row in rows}


def test_curves_of_many_variants_are_spread_over_figures(put_run, tmp_path):
    for label in ["fine", "etag", *(f"etag-v{number}" for number in range(12))]:
        put_run(EQUAL, label, 0)
    write_comparison([tmp_path / "mini"], tmp_path / "report.html")
    drawn = {
        kind: {row["curve"] for row in read_csv(tmp_path / "figures" / f"{kind}-digits-b0-2x5.csv")}
        for kind in ("accuracy", "variants-etag")
    }
    assert drawn["accuracy"] == {"Fine", "eTag"}
    assert drawn["variants-etag"] == {"eTag", *(f"eTag (v{number})" for number in range(12))}


def test_sections_without_content_are_left_out(tmp_path):
    write_run(tmp_path / "runs" / "etag-seed0", optional=False)
    page = read(write_comparison([tmp_path / "runs"], tmp_path / "report.html")[0])
    for title in ("minus each other", "Features", "Agreement", "planned run", "Notice"):
        assert title not in page.text
    assert "Provenance" in page.text


def test_a_notice_and_missing_runs_stand_at_the_top(put_run, tmp_path):
    put_run(EQUAL, "etag", 0)
    (tmp_path / "mini" / "grid.yaml").write_text(
        "summary: a small grid\nsplits: [b0-2x5]\nmethods: [etag, mas]\nseeds: [0, 7]\n"
        'notice: "Do not read a <ranking> from this."\n'
    )
    text = read(write_comparison([tmp_path / "mini"], tmp_path / "report.html")[0]).text
    assert "3 planned runs of mini are missing b0-2x5/mas-seed0, b0-2x5/etag-seed7, b0-2x5/mas-seed7" in text
    assert "Notice. Do not read a <ranking> from this." in text
    assert text.index("Notice.") < text.index("a small grid") < text.index("eTag reaches") < text.index("planned runs")


def test_a_known_grid_is_repeated_by_its_name(tmp_path):
    write_run(tmp_path / "smoke" / "etag-seed0", optional=False)
    (tmp_path / "smoke" / "grid.yaml").write_text("methods: [etag]\n")
    page = read(write_comparison([tmp_path / "smoke"], tmp_path / "report.html")[0])
    assert "etag bench smoke " in page.text


def report(*words):
    return CliRunner().invoke(app, ["report", *map(str, words)])


def test_the_command_distinguishes_runs_from_folders_of_runs(tmp_path):
    run = write_run(tmp_path / "runs" / "etag-seed0", optional=False)
    for folder, name in ((run, "one"), (run.parent, "all")):
        printed = report(folder, "--out", tmp_path / name / "page.html").output
        assert printed.startswith("report of 1 run(s) on 1 split(s): ")
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["page.html"]
    assert list((tmp_path / "all" / "tables").iterdir()), "tables are written for folders only"


@pytest.mark.parametrize("named", [True, False])
def test_the_command_takes_a_reference_for_both_kinds_of_page(put_run, tmp_path, named):
    runs = [put_run(EQUAL, m, seed, A_weighted=A[m][seed]) for m in ("lucir", "etag") for seed in range(3)]
    for run in runs:
        (run / "report.html").touch()  # those of single runs are not needed here
    given, out = runs if named else [tmp_path / "mini"], tmp_path / "page.html"
    assert report(*given, "--out", out, "--reference", "lucir").exit_code == 0
    page = read(out)
    assert "Lucir minus each other method" in page.text
    assert "eTag +3.00 ± 2.65 -3.57 9.57 0, 1, 2" in page.table_text, "its difference to eTag, with the interval"
    refused = report(*given, "--out", out, "--reference", "podnet")
    assert isinstance(refused.exception, EtagError)
    assert "no run of the reference 'podnet': choose one of lucir, etag." in str(refused.exception)


def test_curves_alone_are_of_one_split(parts, tmp_path):
    assert write_curves([parts / "b4-2x3"], tmp_path / "curves.svg").is_file()
    with pytest.raises(EtagError, match=r"these are on digits b4-2x3, digits b0-2x5: name fewer\.$"):
        write_curves([parts], tmp_path / "curves.svg")


def test_every_metric_is_stored_or_computed():
    values = stored_summary(
        {"accuracy_matrix": [[0.5, None], [0.25, 0.75]], "classes_per_task": [1, 1], "A_plain": 0.125}
    )
    assert values.keys() == {metric.name for metric in METRICS}
    assert values["A_plain"] == 0.125, "what is stored counts"
    assert values["F_plain"] == 0.25, "what an older run lacks is computed"
