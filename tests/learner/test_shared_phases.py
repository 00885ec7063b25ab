"""Runs that would train the same first phase share its result, and nothing else changes, bit for bit."""

import json
import re
import threading

import pytest
import torch
from safetensors.torch import load
from tests.runs import outcome, small_config, tensors

from etag.core.files import locked
from etag.engine.engine import Engine
from etag.experiments.run import run
from etag.learner.checkpoints import TaskCheckpointer
from etag.learner.shared_phases import SharedPhases
from etag.learner.stopping import Interrupted
from etag.learner.tensors import TensorFiles

TWO = {"split": "b2-1x2"}
ALIKE = ["fine", "ewc", "mas", "lwf", "lwm", "il2m", "gfr", "fetril", "ldc"]
ALIKE_WITH_VIEWS = ["efine", "eewc", "elwf", "etag", "egfr"]


def entries(folder):
    return sorted(path.name for path in folder.glob("*.json"))


@pytest.fixture
def sharing(lab, tmp_path):
    """sharing(name, options, ...) -> a small method whose engine shares first phases in a folder, and what it says."""

    def make(*args, **keywords):
        made, made.said = lab(*args, **keywords), []
        shared = SharedPhases(tmp_path / "phases", made.engine.runtime, made.said.append, lambda: None)
        made.engine = Engine(made.engine.runtime, shared=shared)
        return made

    return make


@pytest.mark.parametrize("names", [ALIKE, ALIKE_WITH_VIEWS], ids=["plain", "with views"])
def test_methods_that_train_the_base_task_alike_share_it(sharing, tmp_path, names):
    for name in names:
        sharing(name).learn(0)
        assert len(entries(tmp_path / "phases")) == 1, name


def test_every_method_learns_the_same_with_shared_phases(lab, sharing, every_method):
    """Also where another method has trained the base task, and whatever that method is."""
    for name in ("fine", "efine", every_method):
        sharing(name).learn(0)
    with_sharing, alone = sharing(every_method), lab(every_method)
    for made in (with_sharing, alone):
        made.learn(0, 1)
    left, right = tensors(with_sharing.method), tensors(alone.method)
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


@pytest.mark.parametrize(
    ("name", "options", "keywords"),
    [
        ("fine", {}, {"seed": 1}),
        ("fine", {}, {"images": 9}),
        ("fine", {}, {"split": "b4-1x3"}),
        ("fine", {}, {"epochs": 2}),
        ("fine", {}, {"lr": 2e-3}),
        ("fine", {}, {"batch_size": 8}),
        ("fine", {}, {"schedule": "cosine"}),
        ("fine", {}, {"weight_decay": 0.0}),
        ("fine", {"head": {"kind": "cosine"}}, {}),
        ("fine", {"head": {"bias": False}}, {}),
        ("efine", {}, {}),
        ("lucir", {}, {}),
    ],
)
def test_what_changes_the_result_is_trained_anew(sharing, tmp_path, name, options, keywords):
    sharing("fine").learn(0)
    other = sharing(name, options, **keywords)
    other.learn(0)
    assert len(entries(tmp_path / "phases")) == 2
    assert other.said == []


@pytest.mark.parametrize(
    "embedding", [{"views_per_image": 1}, {"image_share": 0.5}, {"views": "jigsaw"}, {"branches": "short"}]
)
def test_other_views_are_trained_anew(sharing, tmp_path, embedding):
    for options in ({}, {"embedding": embedding}):
        sharing("elwf", options).learn(0)
    assert len(entries(tmp_path / "phases")) == 2


@pytest.mark.parametrize("name", ["pass", "podnet", "efc"])
def test_a_loss_that_does_not_say_what_it_computes_is_not_shared(sharing, tmp_path, name):
    sharing(name).learn(0)
    assert not entries(tmp_path / "phases")


def test_later_tasks_are_never_shared(sharing, tmp_path):
    for _ in range(2):
        sharing("fine").learn(0, 1)
    assert len(entries(tmp_path / "phases")) == 1


@pytest.mark.parametrize("damage", ["entry", "tensors", "another path", "another network"])
def test_a_damaged_result_is_trained_again(lab, sharing, tmp_path, damage):
    sharing("fine").learn(0)
    folder = tmp_path / "phases"
    (entry,) = folder.glob("*.json")
    (file,) = folder.glob("*.safetensors")
    if damage == "entry":
        entry.write_text("{")
    elif damage == "tensors":
        file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    elif damage == "another path":
        entry.write_text(json.dumps({"seconds": 1.0, "tensors": "../../etc/passwd"}))
    else:
        other = {name: torch.zeros(2, 2) for name in load(file.read_bytes())}
        entry.write_text(json.dumps({"seconds": 1.0, "tensors": TensorFiles(folder).write(other)}))
    made, alone = sharing("fine"), lab("fine")
    made.learn(0)
    alone.learn(0)
    assert made.said == []
    assert all(torch.equal(value, tensors(alone.method)[name]) for name, value in tensors(made.method).items())


def test_a_run_counts_the_seconds_that_another_run_spared_it(tmp_path, monkeypatch, capsys):
    run(small_config("lwf", **TWO), tmp_path / "alone")
    monkeypatch.setenv("ETAG_PHASES", str(tmp_path / "phases"))
    run(small_config("fine", **TWO), tmp_path / "first")
    (entry,) = (tmp_path / "phases").glob("*.json")
    content = json.loads(entry.read_text())
    assert 0 < content["seconds"] < 600
    entry.write_text(json.dumps(content | {"seconds": 1000.0}))
    metrics = run(small_config("lwf", **TWO), tmp_path / "second", verbose=True)
    assert 1000 < metrics["train_seconds"][0] < 1600
    assert metrics["train_seconds"][1] < 600
    assert re.search(r"phase 'solver' was trained by another run", " ".join(capsys.readouterr().out.split()))
    alone = json.loads((tmp_path / "alone" / "metrics.json").read_text())
    assert metrics["accuracy_matrix"] == alone["accuracy_matrix"]


def test_a_run_that_was_cut_in_its_first_phase_may_go_on_with_a_shared_result(tmp_path, monkeypatch):
    """Another run trains the phase in the meantime."""
    save = TaskCheckpointer.save

    def cut(self, name, state):
        save(self, name, state)
        raise KeyboardInterrupt

    config, often = small_config("lwf", **TWO), small_config("lwf", **TWO, **{"runtime.checkpoint_steps": 1})
    with monkeypatch.context() as patched:
        patched.setattr(TaskCheckpointer, "save", cut)
        with pytest.raises(KeyboardInterrupt):
            run(often, tmp_path / "cut")
    monkeypatch.setenv("ETAG_PHASES", str(tmp_path / "phases"))
    run(small_config("fine", **TWO), tmp_path / "other")
    run(config, tmp_path / "cut")
    monkeypatch.delenv("ETAG_PHASES")
    run(config, tmp_path / "alone")
    (cut_numbers, _, cut_weights), (numbers, _, weights) = (outcome(tmp_path / name) for name in ("cut", "alone"))
    assert cut_numbers == numbers
    assert all(torch.equal(weights[name], cut_weights[name]) for name in weights)


def test_runs_on_features_of_a_frozen_backbone_share_no_phase(tmp_path, monkeypatch):
    monkeypatch.setenv("ETAG_PHASES", str(tmp_path / "phases"))
    run(small_config("fine", **TWO, **{"model.train": "head"}), tmp_path / "run")
    assert not entries(tmp_path / "phases")


class Strange(torch.nn.Identity):
    """A layer of somebody else's package."""


def test_networks_of_other_packages_share_no_phase(sharing, tmp_path):
    made = sharing("fine")
    made.method.solver.backbone.stages[0].append(Strange())
    made.learn(0)
    assert not entries(tmp_path / "phases")


def held(folder, key):
    """Hold the lock of a phase in a thread until an event is set."""
    ready, release = threading.Event(), threading.Event()

    def hold():
        with locked(folder / f"{key}.lock", "busy"):
            ready.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait(60)
    return thread, release


def test_the_seconds_of_waiting_for_another_run_do_not_count(sharing, tmp_path):
    made = sharing("fine")
    made.begin(0)
    (phase,) = made.works(0).values()
    key = made.engine._shared._key(phase)
    thread, release = held(tmp_path / "phases", key)
    threading.Timer(2.0, release.set).start()
    spared = made.engine._train_or_load(phase, None, made.engine._shared)
    thread.join()
    assert -60 < spared < -1.5
    (entry,) = (tmp_path / "phases").glob("*.json")
    entry.write_text(json.dumps(json.loads(entry.read_text()) | {"seconds": 50.0}))
    again = sharing("fine")
    again.begin(0)
    (phase,) = again.works(0).values()
    assert again.engine._train_or_load(phase, None, again.engine._shared) == pytest.approx(50, abs=1)


def test_a_run_that_waits_for_another_can_be_stopped(sharing, tmp_path):
    def stopped():
        raise Interrupted(2)

    made = sharing("fine")
    made.begin(0)
    (phase,) = made.works(0).values()
    shared = SharedPhases(tmp_path / "phases", made.engine.runtime, made.said.append, stopped)
    thread, release = held(tmp_path / "phases", shared._key(phase))
    with pytest.raises(Interrupted):
        made.engine._train_or_load(phase, None, shared)
    release.set()
    thread.join()


def test_a_result_that_cannot_be_written_stops_no_run(sharing, tmp_path):
    made = sharing("fine")
    (tmp_path / "phases").mkdir()
    made.begin(0)
    (phase,) = made.works(0).values()
    (tmp_path / "phases" / f"{made.engine._shared._key(phase)}.json").mkdir()
    made.engine._train_or_load(phase, None, made.engine._shared)
    assert "cannot be shared with other runs" in made.said[0]
