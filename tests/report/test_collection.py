"""A whole grid's runs: grouping, tables, agreement with the paper, and the page with its files."""

import csv
import json
import re
from statistics import fmean, stdev

import numpy as np
import pytest
from PIL import Image
from tests.report.conftest import made_up_embedding, write_run
from tests.report.test_page import check_stands_alone, read
from typer.testing import CliRunner

from etag.cli import app
from etag.core.errors import EtagError
from etag.evaluation.metrics import DEFINITIONS
from etag.experiments.paper import printed
from etag.report import results, studies
from etag.report.collection import read_collection
from etag.report.collection_page import write_collection

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


def scene(folder, split="b4-2x3"):
    return next(s for s in read_collection([folder]).scenes if s.metrics.split == split)


def cells(table):
    """Texts by the name of the row, then by heading."""
    return {
        row.cells[0].text: {c.name: cell for c, cell in zip(table.columns[1:], row.cells[1:], strict=True)}
        for row in table.rows
    }


# -- what belongs together ------------------------------------------------------------------------


def test_runs_are_grouped_by_split_and_label(parts):
    main, equal = read_collection([parts]).scenes
    assert (main.title, main.column, main.is_main) == ("digits b4-2x3", "cifar100-25", True)
    assert main.methods == ["joint", "fine", "lwf", "elwf", "lucir", "gfr", "etag"]
    assert (equal.title, equal.column, equal.is_main) == ("digits b0-2x5", None, False)
    assert equal.labels == ["etag", "b0", "b1", "b2", "b3", "etag-jigsaw", "etag-tau1", "etag-tau5"]
    assert equal.entries["etag-tau1"].name == "eTag (tau1)"
    assert equal.entries["etag-tau1"].seeds == [0, 1]


def test_what_was_only_tried_or_not_finished_is_left_out(grid, tmp_path):
    write_run(grid / "search" / "b2-1x2" / "etag-seed0", optional=False)
    (grid / "b4-2x3" / "gfr-seed0" / "metrics.json").unlink()
    found = read_collection([grid])
    assert len(found.runs) == 3 * len(A) - 1
    assert [path.name for path in found.unfinished] == ["gfr-seed0"]


def test_the_papers_own_split_needs_no_grid(tmp_path):
    write_run(tmp_path / "etag-seed0", data="cifar100", split="b50-5x10", classes=(50, *[10] * 5), optional=False)
    assert read_collection([tmp_path]).scenes[0].column == "cifar100-5"


def test_two_grids_on_one_split_are_told_apart(tmp_path):
    for name in ("one", "two"):
        write_run(tmp_path / name / "etag-seed0", optional=False)
    assert [s.title for s in read_collection([tmp_path]).scenes] == ["digits b5-5x1 (one)", "digits b5-5x1 (two)"]


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(EtagError, match=r"holds no finished run: there is no metrics\.json in it or below it\.$"):
        read_collection([tmp_path])


def test_the_same_run_twice_is_refused(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, optional=False)
    with pytest.raises(EtagError, match="are both etag with seed 0"):
        read_collection([tmp_path])


def test_an_unknown_column_of_the_paper_is_refused(grid):
    (grid / "grid.yaml").write_text("paper: {b4-2x3: cifar100-7}\n")
    with pytest.raises(EtagError, match=r"no column 'cifar100-7', only cifar100-5, "):
        read_collection([grid])


# -- tables ---------------------------------------------------------------------------------------


def test_the_main_table_has_ours_and_the_papers(grid):
    table = results.main_table([scene(grid)])
    found = cells(table)
    assert list(found) == ["Joint", "Fine", "LwF", "eLwF", "Lucir ‡", "GFR", "eTag"]
    assert found["LwF"]["A (%)"].text == "42.00 ± 2.00"
    assert found["LwF"]["F (points)"].text == "58.00 ± 2.00"
    assert found["LwF"]["paper’s A"].text == "16.92 ± 1.21"
    assert found["LwF"]["seeds"].text == "3"
    assert [row.shaded for row in table.rows] == [False, False, False, True, False, False, False]
    assert [row.ruled for row in table.rows] == [False, False, True, False, False, False, False]
    assert any("stands for the paper’s 25 tasks on cifar100" in note for note in table.notes)


def test_the_best_and_the_second_are_marked_but_no_bound(grid):
    found = cells(results.main_table([scene(grid)]))
    for letter in ("A (%)", "F (points)"):
        assert {name: row[letter].rank for name, row in found.items() if row[letter].rank} == {
            "Lucir ‡": 1,
            "eTag": 2,
        }
    assert not any(row["paper’s A"].rank for row in found.values())


def test_what_is_written_alike_is_equally_good(grid, put_run):
    for seed, a in enumerate(A["lucir"]):
        put_run(MAIN, "podnet", seed, A_weighted=a + 1e-6)
    table = results.main_table([scene(grid)])
    found = cells(table)
    assert [found[name]["A (%)"].rank for name in ("Lucir ‡", "PODNet", "eTag")] == [1, 1, 2]
    assert table.rows[-1].ruled
    assert found["PODNet"]["paper’s A"].text == "–"


def test_a_misprint_has_its_dagger(grid, put_run):
    put_run(MAIN, "eewc", 0)
    (grid / "grid.yaml").write_text("paper: {b4-2x3: imagenet-sub-25}\n")
    table = results.main_table([scene(grid)])
    assert cells(table)["eEWC"]["paper’s F"].text == "10.68 ± 0.41 †"
    assert "† As the paper prints it for eEWC: it repeats the accuracy beside it." in table.notes


def test_the_headline_is_of_the_best_without_exemplars(grid):
    assert results.headline(scene(grid)) == (
        "eTag is the best method that keeps no exemplars, at 60.0 ± 2.0 %: 5.0 ± 1.0 points above GFR, "
        "3.0 ± 2.6 below Lucir, 39.0 ± 2.6 above Fine and 21.0 ± 2.6 below Joint."
    )


def test_agreement_leaves_the_bounds_out(grid):
    ranking = results.ranking(scene(grid))
    assert [entry.method for entry in ranking.entries] == ["lwf", "elwf", "lucir", "gfr", "etag"]
    column = printed().table1["cifar100-25"]
    assert ranking.theirs == [column[entry.method].A for entry in ranking.entries]
    # ours: LwF < eLwF < GFR < eTag < Lucir; the paper's: LwF < eLwF < Lucir < GFR < eTag: 2 of 10 pairs differ
    assert ranking.agreement.tau == pytest.approx(0.6)
    low, high = ranking.agreement.interval
    assert low <= 0.6 <= high


def test_differences_over_seeds(grid):
    found = cells(results.paired_table(scene(grid)))
    differences = [100 * (a - b) for a, b in zip(A["etag"], A["lucir"], strict=True)]
    mean, margin = fmean(differences), 4.3027 * stdev(differences) / 3**0.5
    row = found["Lucir"]
    assert row["eTag’s A minus its (points)"].text == "-3.00 ± 2.65"  # of -2, -6, -1
    assert (row["95 % from"].value, row["to"].value) == pytest.approx((mean - margin, mean + margin))
    assert row["seeds"].text == "0, 1, 2"
    assert found["GFR"]["eTag’s A minus its (points)"].text == "+5.00 ± 1.00"


def test_the_ablation_and_the_self_supervised_tasks(parts):
    equal = scene(parts, "b0-2x5")
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
    assert studies.ablation_table(scene(parts)) is None
    assert studies.self_supervised_table(scene(parts)) is None


def test_temperatures_rise_and_etag_has_its_own(parts):
    by_tau = studies.by_temperature(scene(parts, "b0-2x5"))
    assert {tau: entry.name for tau, entry in by_tau.items()} == {1: "eTag (tau1)", 3: "eTag", 5: "eTag (tau5)"}


def test_times_stand_beside_the_papers(grid, put_run):
    seconds = {"train_seconds": [10.0, 20.0], "test_seconds": [1.0, 1.0]}
    put_run(EQUAL, "etag", 0, **seconds, confusion=[[4] + [0] * 9] * 10)
    put_run(EQUAL, "b1", 0, train_seconds=[6.0, 8.0], test_seconds=[1.0, 1.0])
    etag, b1 = studies.time_table(scene(grid, "b0-2x5")).rows
    # 20 images after the first task, 40 after the second
    assert [c.text for c in etag.cells[1:]] == ["30.0", "2.0", "33.333", "1.00", "12858.18", "13.87", "1.00"]
    assert [c.text for c in b1.cells[1:]] == ["14.0", "2.0", "2.667", "0.50", "3050.58", "12.12", "0.24"]


def test_images_tested_are_unknown_where_classes_come_again(grid):
    metrics = scene(grid).metrics
    assert studies.tested_images(metrics) == 50 * (4 + 7 + 10)
    assert studies.tested_images(metrics.model_copy(update={"classes_per_task": [10, 0, 0]})) is None


def test_sizes_by_part(grid):
    table = studies.size_table(scene(grid))
    stored = [place for place, column in enumerate(table.columns) if column.group == "stored"]
    lucir = next(row for row in table.rows if row.cells[0].text == "Lucir")
    assert [table.columns[place].name for place in stored] == ["all", "backbone", "head", "exemplars"]
    assert [lucir.cells[place].value for place in stored] == [539, 400, 40, 99]


def test_generative_methods_stand_beside_the_papers(grid, put_run):
    for method in ("bir", "gc", "etag"):
        put_run(EQUAL, method, 0, A_weighted=0.5)
    found = cells(studies.generative_table(scene(grid, "b0-2x5")))
    assert [row["paper’s A"].text for row in found.values()] == ["34.38 ± 0.21", "49.55 ± 0.06", "54.36 ± 0.22"]


# -- the page -------------------------------------------------------------------------------------


def test_the_page_stands_alone_with_its_files_beside_it(parts, tmp_path):
    rng = np.random.default_rng(0)
    for method in ("fine", "etag"):
        for task, classes in enumerate((4, 7, 10), start=1):
            file = parts / "b4-2x3" / f"{method}-seed0" / f"embedding-{task:03}.json"
            file.write_text(json.dumps(made_up_embedding(rng, classes, 0.9)))
    out = tmp_path / "out" / "report.html"
    path, found = write_collection([parts], out)
    page = check_stands_alone(path)
    assert len(found.runs) == 37
    for words in (
        "mini · 37 runs on digits b4-2x3, digits b0-2x5",
        "a <small> grid",
        "eTag is the best method that keeps no exemplars",
        "Agreement with the paper",
        "etag bench mini",
        "etag run mine --method etag-tau1",
        "etag run ../mini/b4-2x3/etag-seed0/config.yaml",
        "paper: {b4-2x3: cifar100-25}",
        "torch2.9.0+cpu",
    ):
        assert words in page.text
    assert DEFINITIONS["A_weighted"] in page.text
    html = path.read_text()
    assert "<strong>63.00 ± 1.00</strong>" in html
    assert "<u>60.00 ± 2.00</u>" in html
    assert set(re.findall(r'href="#([^"]+)"', html)) <= set(re.findall(r'id="([^"]+)"', html))
    check_files(out.parent)


def check_files(folder):
    tables = {path.name for path in (folder / "tables").iterdir()}
    names = {name.rpartition(".")[0] for name in tables}
    assert names >= {"table1", "agreement", "paired-digits-b4-2x3", "ablation-digits-b0-2x5", "size-digits-b0-2x5"}
    assert tables == {f"{name}.{ending}" for name in names for ending in ("csv", "md", "tex")}
    figures = {path.name for path in (folder / "figures").iterdir()}
    names = {name.rpartition(".")[0] for name in figures}
    assert names == {
        "accuracy-digits-b4-2x3",
        "agreement-digits-b4-2x3",
        "components-digits-b0-2x5",
        "temperature-digits-b0-2x5",
        *(f"confusion-{method}-digits-b4-2x3" for method in ("fine", "gfr", "etag", "joint")),
        *(f"tsne-{method}-digits-b4-2x3" for method in ("fine", "etag")),
    }
    assert figures == {f"{name}.{ending}" for name in names for ending in ("csv", "svg", "png")}
    Image.open(folder / "figures" / "agreement-digits-b4-2x3.png").load()
    rows = list(csv.DictReader((folder / "figures" / "agreement-digits-b4-2x3.csv").read_text().splitlines()))
    assert rows[-1] == {"method": "etag", "paper A": "61.63", "our A": "60.0"}
    tsne = list(csv.DictReader((folder / "figures" / "tsne-fine-digits-b4-2x3.csv").read_text().splitlines()))
    assert {row["task"] for row in tsne} == {"1", "2", "3"}


def test_sections_without_runs_are_left_out(tmp_path):
    write_run(tmp_path / "runs" / "etag-seed0", optional=False)
    page = read(write_collection([tmp_path / "runs"], tmp_path / "report.html")[0])
    assert "Collection of runs · 1 run on digits b5-5x1" in page.text
    assert "Results" not in page.text
    assert "Provenance" in page.text


def test_the_command_tells_runs_from_folders_of_them(tmp_path):
    run = write_run(tmp_path / "runs" / "etag-seed0", optional=False)
    said = [
        CliRunner().invoke(app, ["report", str(folder), "--out", str(tmp_path / "page.html")]).output
        for folder in (run, run.parent)
    ]
    assert said[0].startswith("comparison of 1 run(s): ")
    assert said[1].startswith("report of 1 run(s) on 1 split(s): ")
