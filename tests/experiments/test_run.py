"""Whole runs on small real data."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from tests.runs import tensors

from etag.core.errors import EtagError
from etag.data.scenario import build_scenario
from etag.experiments import yaml_files
from etag.experiments.config import resolve
from etag.experiments.run import run
from etag.experiments.run_directory import RunDirectory
from etag.report.comparison_page import write_comparison
from etag.report.page import write_run_report


@pytest.mark.parametrize(
    "method", [pytest.param("fine", marks=pytest.mark.slow), pytest.param("joint", marks=pytest.mark.slow), "etag"]
)
def test_two_runs_of_one_config_give_identical_numbers_and_weights(small, method, tmp_path):
    config = small(method)
    first, second = (run(config, tmp_path / name) for name in ("a", "b"))
    for key in ("accuracy_matrix", "task_aware_matrix", "confusion", "A_weighted"):
        assert first[key] == second[key]
    weights = [tensors(RunDirectory(tmp_path / name).model.load_method()[0]) for name in ("a", "b")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    other = run(small(method, seed=1), tmp_path / "c")
    assert other["class_names"] != first["class_names"]


def test_a_run_does_not_depend_on_the_global_generator(small, tmp_path):
    config = small("etag")
    torch.manual_seed(1)
    first = run(config, tmp_path / "a")
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = run(config, tmp_path / "b")
    assert torch.equal(torch.get_rng_state(), state)
    assert first["confusion"] == second["confusion"]


def test_the_run_directory_holds_all_that_is_promised(small, tmp_path):
    metrics = run(small("etag"), tmp_path / "run")
    directory = RunDirectory(tmp_path / "run")
    assert json.loads(directory.metrics.read_text()) == metrics
    promised = {"accuracy_matrix", "A_weighted", "A_plain", "F_weighted", "F_plain", "F_paper", "last_accuracy"}
    promised |= {"classes_per_task", "train_seconds", "test_seconds", "parameters", "method", "seed", "stored_bytes"}
    assert promised <= metrics.keys()
    matrix = metrics["accuracy_matrix"]
    assert [[value is None for value in row] for row in matrix] == [[u > t for u in range(3)] for t in range(3)]
    assert all(0 <= value <= 1 for row in matrix for value in row if value is not None)
    assert metrics["classes_per_task"] == [2, 1, 1]
    assert len(metrics["train_seconds"]) == len(metrics["test_seconds"]) == 3
    method, _ = directory.model.load_method()
    parts = method.parts.values()
    assert metrics["parameters"] == sum(p.numel() for part in parts for p in part.parameters())
    assert metrics["stored_bytes"] == sum(t.nbytes for part in parts for t in part.state_dict().values())
    lines = [json.loads(line) for line in directory.steps.read_text().splitlines()]
    phases = {(task, phase) for task in range(3) for phase in ("solver", "generator")}
    assert {(line["task"], line["phase"]) for line in lines} == phases
    assert set(lines[-1]["terms"]) == {"kl", "recon", "guide", "match"}
    saved = np.load(directory.features / "task-003.npz")
    assert saved["features"].shape == (4 * 8, method.solver.backbone.feature_size)
    assert np.bincount(saved["labels"]).tolist() == [8] * 4
    assert directory.model.versions == [3]
    assert directory.model.about().pinned
    assert not directory.model.unfinished.exists()


def test_a_saved_model_predicts_as_it_did_at_the_end_of_the_run(small, tmp_path):
    config = small("etag", **{"train.epochs": 4})
    metrics = run(config, tmp_path / "run")
    classifier, about = RunDirectory(tmp_path / "run").model.load_classifier()
    assert about.history[-1].evaluation.confusion == metrics["confusion"]
    scenario, preprocess = build_scenario(config.data, config.split, config.seed)
    for task, expected in zip(scenario, metrics["accuracy_matrix"][-1], strict=True):
        with torch.no_grad():
            scores = classifier(preprocess.centered(task.test.pixels))
        assert (scores.argmax(1) == task.test.labels).double().mean().item() == expected


def test_joint_counts_the_images_it_stores_and_others_have_none(small, tmp_path):
    joint = run(small("joint"), tmp_path / "joint")
    fine = run(small("fine"), tmp_path / "fine")
    assert joint["stored_bytes_by_part"]["images"] == 4 * 20 * 64
    assert joint["stored_bytes"] - fine["stored_bytes"] == 4 * 20 * 64
    assert "images" not in fine["stored_bytes_by_part"]


def test_a_run_directory_is_only_replaced_when_asked_for(small, tmp_path):
    out = tmp_path / "run"
    run(small("fine"), out)
    before = (out / "metrics.json").read_bytes()
    with pytest.raises(
        EtagError, match=r"a finished run of another configuration \(seed is 0 in the directory and 5 in"
    ):
        run(small("fine", seed=5), out)
    assert (out / "metrics.json").read_bytes() == before
    run(small("fine", seed=5), out, restart=True)
    assert json.loads((out / "metrics.json").read_text())["seed"] == 5


def test_a_run_from_before_there_was_an_option_is_the_same_run(small, tmp_path):
    out = tmp_path / "run"
    run(small("fine"), out)
    config = yaml_files.read(out / "config.yaml")
    del config["data"]["draw"]
    (out / "config.yaml").write_text(yaml_files.write(config))
    assert RunDirectory(out).finished(small("fine"))
    with pytest.raises(EtagError, match=r"data.draw is False in the directory and True in"):
        RunDirectory(out).finished(small("fine", **{"data.draw": True}))
    (out / "config.yaml").write_text(yaml_files.write(config | {"gone": 1}))
    with pytest.raises(EtagError, match=r"gone is 1 in the directory and None in"):
        RunDirectory(out).finished(small("fine"))


def test_a_folder_that_is_not_a_run_is_never_replaced(small, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(EtagError, match="is not a run directory"):
        run(small("fine"), tmp_path, restart=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.slow
def test_a_method_learns_small_real_data_and_etag_forgets_less_than_fine(tmp_path):
    """The demonstration in small: digits in 3 + 1 + 1 classes."""
    settings = {"split": "b3-2x1", "model.width": 8, "train.epochs": 12, "data.train_per_class": 80}
    results = {}
    for method in ("fine", "etag", "joint"):
        quick = {"method.generator.train.epochs": 20} if method == "etag" else {}
        results[method] = run(resolve("digits", {"method": method, **settings, **quick}), tmp_path / method)
    fine, etag, joint = (results[name]["A_weighted"] for name in ("fine", "etag", "joint"))
    assert all(result["accuracy_matrix"][0][0] > 0.9 for result in results.values()), "each learns its base task"
    assert joint > 0.9
    assert etag > fine + 0.2
    assert results["etag"]["F_plain"] < results["fine"]["F_plain"] - 0.3


def test_the_papers_protocol_runs_on_real_cifar100(shared_data, tmp_path):
    settings = {
        "data.path": str(shared_data / "cifar100"),
        "data.train_per_class": 16,
        "data.test_per_class": 5,
        "data.size": 16,
        "model.width": 4,
        "train.epochs": 1,
        "train.batch_size": 32,
        "method.generator.train.epochs": 2,
        "method.generator.feature_passes": 2,
    }
    metrics = run(resolve(given={"data": "cifar100", "split": "b10-2x2", **settings}), tmp_path / "run")
    assert metrics["classes_per_task"] == [10, 2, 2]
    assert len(set(metrics["class_names"])) == 14
    assert sum(map(sum, metrics["confusion"])) == 14 * 5


@pytest.fixture
def domains(shared_data):
    """The configuration of a short run on permuted MNIST, the digits being the same classes in every task."""

    def configure(method, **more):
        data = {"data": "permuted-mnist", "data.path": str(shared_data / "mnist"), "data.domains": True}
        few = {"data.train_per_class": 12, "data.test_per_class": 4, "data.permutations": 3, "split": "b0-3x10"}
        short = {"model.backbone": "mlp", "model.width": 32, "train.epochs": 12, "train.batch_size": 24}
        return resolve("digits", {"method": method, **data, **few, **short, **more})

    return configure


def test_tasks_may_bring_no_new_class(domains, tmp_path):
    generator = {"method.generator.train.epochs": 12, "method.generator.hidden": 32}
    metrics = run(domains("tag", **generator), tmp_path / "run")
    assert metrics["classes_per_task"] == [10, 0, 0]
    assert metrics["classes_in_task"] == [10, 10, 10]
    assert metrics["task_aware_matrix"] == metrics["accuracy_matrix"], "all ten compete in any case"
    assert metrics["accuracy_matrix"][0][0] > 0.3, "ten digits, chance is 0.1"
    assert sum(map(sum, metrics["confusion"])) == 3 * 10 * 4
    method, about = RunDirectory(tmp_path / "run").model.load_method()
    assert method.solver.head.outputs == method.generator.network.decoder_in.rows.shape[0] == 10
    assert about.task_sizes == (10, 0, 0)
    assert len(about.classes) == 10
    assert write_run_report(tmp_path / "run").is_file()


@pytest.mark.parametrize("method", ["etag", "efine", "lwf", "il2m"])
def test_most_methods_need_new_classes(domains, method, tmp_path):
    with pytest.raises(EtagError, match="later tasks have none: choose a method that supports this"):
        run(domains(method), tmp_path / "run")


@pytest.mark.parametrize(("method", "count"), [("dgr", 3), pytest.param("abd", 2, marks=pytest.mark.slow), ("etag", 0)])
def test_generated_images_are_saved_after_each_task(small, method, count, tmp_path):
    own = {"dgr": {"method.generator.train.epochs": 1}, "abd": {"method.generator.train.steps": 4}}
    run(small(method, **own.get(method, {})), tmp_path / "run")
    names = sorted(path.name for path in (tmp_path / "run").glob("generated/*"))
    assert names == [f"task-00{number}.png" for number in range(1, count + 1)]
    for name in names:
        image = Image.open(tmp_path / "run" / "generated" / name)
        assert image.size == (12 * 10, 10 * 10), "digits of 8 pixels, a frame around each"
        assert len(np.unique(np.asarray(image))) > 20
    assert write_run_report(tmp_path / "run").read_text().count("from the generator after task") == count


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gc", "bir"])
def test_the_source_of_frozen_features_is_printed_with_every_result(small, method, tmp_path, capsys):
    steps = {"method.generator.train.steps": 3, "method.features.passes": 1}
    metrics = run(small(method, **steps), tmp_path / "run", verbose=True)
    assert metrics["remarks"] == {"features": "a frozen backbone, trained on the base task"}
    assert "features: a frozen backbone, trained on the base task." in capsys.readouterr().out
    for page in (write_run_report(tmp_path / "run"), write_comparison([tmp_path / "run"], tmp_path / "page.html")[0]):
        assert "a frozen backbone, trained on the base task" in page.read_text()


def test_features_can_be_saved_after_each_task_without_changing_the_run(small, tmp_path):
    plain = run(small("fine", **{"evaluation.features": "none"}), tmp_path / "plain")
    saved = run(small("fine", **{"evaluation.features": "every"}), tmp_path / "saved")
    assert saved["confusion"] == plain["confusion"]
    for task, classes in enumerate(([0, 1], [0, 1, 2], [0, 1, 2, 3]), start=1):
        content = np.load(tmp_path / "saved" / "features" / f"task-{task:03}.npz")
        assert sorted(set(content["labels"].tolist())) == classes
        assert len(content["features"]) == len(content["labels"]) == 8 * len(classes)
    last, _ = RunDirectory(tmp_path / "saved").model.load_classifier()
    config = small("fine")
    scenario, preprocess = build_scenario(config.data, config.split, config.seed)
    images = scenario.tasks[0].test
    with torch.no_grad():
        expected = last.backbone(preprocess.centered(images.pixels))
    for label in (0, 1):
        rows = content["features"][content["labels"] == label]
        np.testing.assert_allclose(rows, expected[images.labels == label].numpy(), rtol=1e-3, atol=1e-5)  # float16
    assert not (tmp_path / "plain" / "features").exists()


def test_an_old_run_directory_is_refused_in_one_sentence(small, tmp_path):
    """The format of earlier commits: model.json and model.safetensors beside config.yaml."""
    run(small("fine"), tmp_path / "run")
    for name in ("versions", "tensors"):
        shutil.rmtree(tmp_path / "run" / name)
    (tmp_path / "run" / "current").unlink()
    (tmp_path / "run" / "model.json").write_text(json.dumps({"format": 1, "task_sizes": [2, 1, 1]}))
    (tmp_path / "run" / "model.safetensors").write_bytes(b"")
    with pytest.raises(EtagError, match=r"is not a model directory: .*a finished `etag run` is one"):
        RunDirectory(tmp_path / "run").model.load_classifier()
