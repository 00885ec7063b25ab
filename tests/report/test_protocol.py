"""What a page says of how the methods were trained and their settings chosen."""

import pytest
from tests.report.conftest import write_run

from etag.experiments import yaml_files
from etag.experiments.config import resolve
from etag.report.collection import read_collection
from etag.report.comparison_page import write_comparison
from etag.report.protocol import search_table, training_table

FINE = {"train.epochs": 6, "train.base.epochs": 9, "train.lr": 1e-3, "train.base.lr": 3e-3}


@pytest.fixture
def configured(tmp_path):
    """configured(method, {options}, folder=..., seed=..., ...) -> a run directory with a real configuration."""

    def make(method, options=None, folder="split", seed=0, label=None, **changes):
        path = write_run(tmp_path / folder / f"{label or method}-seed{seed}", method, seed=seed, **changes)
        config = resolve("digits", {"method": method, "seed": seed} | FINE | (options or {}))
        (path / "config.yaml").write_text(yaml_files.write(config.to_json()))
        return path

    return make


def table(folder):
    (group,) = read_collection([folder]).groups
    found = training_table(group)
    heads = [f"{column.group} {column.name}".strip() for column in found.columns]
    rows = {row.cells[0].text: dict(zip(heads, (cell.text for cell in row.cells), strict=True)) for row in found.rows}
    return rows, found.notes


def test_every_method_shows_lengths_rates_and_what_it_needs_beyond_them(configured, tmp_path):
    plain = {"parameters_by_part": {"backbone": 10}, "stored_bytes_by_part": {"backbone": 40}}
    configured("fine", **plain)
    configured("gfr", {"method.generator": {"kind": "cvae", "train": {"epochs": 40}}}, **plain)
    exemplars = plain | {"stored_bytes_by_part": {"backbone": 40, "exemplars": 9}}
    configured("lucir", {"method.exemplars.per_class": 4}, **exemplars)
    configured("il2m", {"method.exemplars.total": 30}, **exemplars)
    sampled = {"method.embedding": {"views_per_image": 1, "image_share": 0.5}, "method.generator.train.steps": 7}
    configured("etag", sampled)
    rows, _ = table(tmp_path)
    for row in rows.values():
        assert row["length base task"] == "9 epochs"
        assert row["length later tasks"] == "6 epochs"
        assert (row["learning rate base task"], row["learning rate later tasks"]) == ("0.003", "0.001")
    beyond = {title: row["beyond that"] for title, row in rows.items()}
    assert beyond == {
        "Fine": "–",
        "GFR": "generator: 40 epochs",
        "Lucir": "exemplars: 4 per class",
        "IL2M": "exemplars: 30 in all",
        "eTag": "auxiliaries on 1 view of 50% of the images; generator: 7 steps",
    }


@pytest.mark.parametrize(
    ("seeds", "names", "expected"),
    [
        ((0,), None, "One seed, so one order of classes"),
        ((0, 1), None, "All 2 seeds share one order of classes"),
        ((0, 1), lambda seed: [f"{seed}-{k}" for k in range(10)], "2 orders of classes with 2 seeds"),
    ],
)
def test_the_page_says_how_many_orders_of_classes_there_are(configured, tmp_path, seeds, names, expected):
    for seed in seeds:
        configured("fine", seed=seed, names=names and names(seed), precision="bf16-mixed")
    _, notes = table(tmp_path)
    assert notes[0].startswith(expected)
    assert notes[1] == "Precision: bf16-mixed."


def test_runs_without_a_known_training_have_no_table(make_run, tmp_path):
    make_run("split/fine-seed0", method="fine")
    (group,) = read_collection([tmp_path]).groups
    assert training_table(group) is None


def test_the_trials_of_a_search_are_listed_with_the_chosen_one_first(configured, tmp_path):
    configured("fine", folder="b5-5x1")
    configured("lwf", folder="b5-5x1")
    (tmp_path / "grid.yaml").write_text("recipe: digits\nmethods: [fine, lwf]\nsplits: [b5-5x1]\nseeds: [0]\n")
    scores = {"lr=0.001,weight=1": 0.4, "lr=0.003,weight=1": 0.6, "lr=0.003,weight=10": 0.5}
    for label, score in scores.items():
        configured("lwf", folder="search/b5-5x1", label=f"lwf-{label}", A_weighted=score)
    collection = read_collection([tmp_path])
    (grid,) = collection.grids
    found = search_table(grid.path, grid.trials)
    assert [cell.text for cell in found.rows[0].cells] == [
        "lwf",
        "b5-5x1",
        "lr=0.003,weight=1",
        "60.00",
        "3",
        "lr=0.003,weight=10: 50.00; lr=0.001,weight=1: 40.00",
    ]
    page, _ = write_comparison([tmp_path], tmp_path / "page" / "index.html")
    text = page.read_text()
    assert "Settings that were searched for" in text
    assert "Training" in text
    assert (page.parent / "tables" / "search.csv").is_file()
