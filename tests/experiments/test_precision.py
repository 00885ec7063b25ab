"""The precision of a run: what `auto` means, that it is recorded and stays; every method trains in bfloat16."""

import json

import pytest
import torch
import yaml
from tests.experiments.test_grid import TINY, bench, grid_file

from etag.core.errors import EtagError
from etag.core.options import RuntimeOptions
from etag.core.random import Draws, Stream
from etag.core.work import Batch
from etag.data.scenario import build_scenario
from etag.engine import runtime
from etag.engine.runtime import resolve_precision, resolve_runtime
from etag.engine.threads import ThreadChoice
from etag.evaluation.evaluate import predictions_pass
from etag.experiments.run import run
from etag.learner.model_directory import ModelDirectory
from etag.methods.registry import METHODS


@pytest.fixture
def processor(monkeypatch):
    """processor(has_units): a processor with or without units for bfloat16; no GPU."""
    monkeypatch.delenv("ETAG_PRECISION")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)

    def pretend(has_units):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has_units})

    return pretend


def chosen(precision="auto"):
    return resolve_precision(RuntimeOptions(precision=precision)).precision


def test_auto_is_bfloat16_only_where_there_are_units_for_it(processor, monkeypatch):
    processor(True)
    assert chosen() == "bf16-mixed"
    assert chosen(precision="32-true") == "32-true"
    processor(False)
    assert chosen() == "32-true"
    assert chosen(precision="bf16-mixed") == "bf16-mixed", "as it was asked for"
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    assert chosen() == "bf16-mixed"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, expected in (((7, 0), "32-true"), ((8, 0), "bf16-mixed"), ((9, 0), "bf16-mixed")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda capability=capability: capability)
        assert chosen() == expected


def test_the_environment_says_what_auto_means(processor, monkeypatch):
    processor(True)
    monkeypatch.setenv("ETAG_PRECISION", "32-true")
    assert chosen() == "32-true"
    assert resolve_precision(RuntimeOptions(precision="auto"), recorded="bf16-mixed").precision == "bf16-mixed"
    monkeypatch.setenv("ETAG_PRECISION", "half")
    with pytest.raises(EtagError, match=r"^ETAG_PRECISION='half' is not a precision: set 32-true, bf16-mixed or"):
        chosen()


def test_a_precision_that_was_chosen_for_the_user_is_printed(processor):
    def printed(**options):
        lines = []
        resolve_runtime(RuntimeOptions(threads=1, **options), print_line=lines.append)
        return lines

    processor(True)
    assert RuntimeOptions().precision == "auto"
    assert printed() == ["computing in bf16-mixed; --set runtime.precision=32-true computes in float32."]
    assert printed(precision="bf16-mixed") == []
    processor(False)
    assert printed() == []


def test_a_resumed_run_computes_with_as_many_threads_as_before(small, tmp_path, monkeypatch):
    monkeypatch.setattr(runtime, "measure_threads", lambda: ThreadChoice(1, 0.5))
    run(small("fine"), tmp_path / "run")
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["runtime"]["threads"] == 1
    (tmp_path / "run" / "metrics.json").unlink()
    monkeypatch.setattr(runtime, "measure_threads", None)
    run(small("fine"), tmp_path / "run")


def test_a_run_is_resumed_in_the_precision_that_it_began_with(processor, small, tmp_path, monkeypatch):
    config = small("fine", **{"runtime.precision": "auto"})
    processor(True)
    run(config, tmp_path / "whole")
    save = ModelDirectory.save

    def stop(self, method, about, keep):
        save(self, method, about, keep)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ModelDirectory, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "cut")
    processor(False)
    run(config, tmp_path / "cut")
    assert yaml.safe_load((tmp_path / "cut" / "config.yaml").read_text())["runtime"]["precision"] == "bf16-mixed"
    whole, cut = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("whole", "cut"))
    assert cut["precision"] == whole["precision"] == "bf16-mixed"
    assert cut["accuracy_matrix"] == whole["accuracy_matrix"]
    assert run(config, tmp_path / "other")["precision"] == "32-true"


@pytest.mark.parametrize(
    ("began", "expected"), [(True, "bf16-mixed"), pytest.param(False, "32-true", marks=pytest.mark.slow)]
)
def test_all_runs_of_a_grid_have_the_precision_that_it_began_with(processor, tmp_path, began, expected):
    settings = TINY | {"runtime.precision": "auto"}
    processor(began)
    (first,) = bench(tmp_path, grid_file(tmp_path, settings=settings))
    processor(not began)
    both = bench(tmp_path, grid_file(tmp_path, methods=["fine", "lwf"], settings=settings))
    assert [status.state for status in (first, *both)] == ["done"] * 3
    for status in both:
        folder = tmp_path / "results" / status.run.name
        assert json.loads((folder / "metrics.json").read_text())["precision"] == expected
        assert f"--set runtime.precision={expected}" in (folder / "command.txt").read_text()


OWN = {
    "gc": {"method.features.passes": 1, "method.generator.train.steps": 4},
    "bir": {"method.features.passes": 1, "method.generator": {"hidden": 32, "train": {"steps": 4, "batch_size": 8}}},
    "abd": {"method.generator": {"latent": 8, "train": {"steps": 4, "batch_size": 8}}},
}


@pytest.mark.parametrize(
    "name", [name if name == "etag" else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_every_method_trains_in_bfloat16(small, name, tmp_path):
    own = OWN.get(name) or OWN.get(name.removeprefix("e"), {})
    metrics = run(small(name, **own, **{"split": "b2-1x2", "runtime.precision": "bf16-mixed"}), tmp_path)
    assert metrics["precision"] == "bf16-mixed"
    method, _ = ModelDirectory(tmp_path).load_method()
    for part in method.parts.values():
        for name, value in part.state_dict().items():
            assert value.dtype not in (torch.bfloat16, torch.float16), name
            assert not value.is_floating_point() or value.isfinite().all(), name


@pytest.mark.parametrize(
    "options",
    [
        {"method.generator.decoder_noise": True},
        *(
            pytest.param(options, marks=pytest.mark.slow)
            for options in (
                {"method.generator.standardize": True, "method.refit": "ridge"},
                {"method.generator": {"kind": "wgan", "train": {"epochs": 1, "batch_size": 8}}},
                {"method.generator": "prototypes"},
                {"method.generator": "gaussians", "method.refit": "ridge"},
                {"method.refit": {"steps": 4, "batch_size": 8, "lr": 1e-2}},
            )
        ),
    ],
    ids=str,
)
def test_every_generator_and_refit_trains_in_bfloat16(small, options, tmp_path):
    assert run(small("gfr", **options, **{"runtime.precision": "bf16-mixed"}), tmp_path)["precision"] == "bf16-mixed"


def test_bfloat16_predictions_are_those_of_etag_predict(small, tmp_path):
    """Scores are computed in float32 from features in bfloat16: they do not tie."""
    config = small("ncm", **{"split": "b2-1x2", "runtime.precision": "bf16-mixed", "data.test_per_class": 40})
    run(config, tmp_path)
    classifier, _ = ModelDirectory(tmp_path).load_classifier()
    task = build_scenario(config.data, config.split, config.seed)[0].tasks[0]
    preprocess = build_scenario(config.data, config.split, config.seed)[1]
    inputs = preprocess.centered(task.test.pixels)
    batch = Batch(inputs, task.test.labels, Draws(Stream.root(0)), len(inputs))
    module = predictions_pass(None, classifier, [2, 2], scores=True).module
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        scores = module(batch)["scores"]
        features = classifier.backbone(inputs)
    assert features.dtype == torch.bfloat16
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, classifier.classify(features.float()))
