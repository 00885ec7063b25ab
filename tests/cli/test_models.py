"""The commands for models on the directory of a finished `etag run`: predict, evaluate, export, info, learn."""

import csv
import hashlib
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.app.conftest import etag, printed, refused

from etag.app.sources import source_folders
from etag.core.files import checksum
from etag.learner.model_directory import ModelDirectory

SMALL = {
    "split": "b2-2x1",
    "model.width": 4,
    "train.epochs": 6,
    "train.batch_size": 16,
    "data.train_per_class": 40,
    "data.test_per_class": 10,
}
GENERATOR = {"method.generator.train.epochs": 3, "method.generator.feature_passes": 2}
SHORT = ["--set", "train.steps=6"]


def run_words(method, out, **more):
    """The words of a small `etag run`."""
    words = ["run", "digits", "--method", method, "--out", out]
    own = GENERATOR if method == "etag" else {}
    for key, value in (SMALL | own | more).items():
        words += ["--set", f"{key}={json.dumps(value)}"]
    return words


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def finished(home):
    """The directory of a finished run of eTag; tests must not change it."""
    done = etag(*run_words("etag", home / "etag"))
    assert done.returncode == 0, done.stderr
    return home / "etag"


@pytest.fixture
def copied(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def images(home, finished):
    """Folders of the run's classes (known), and of two that it has not seen (new)."""
    known = ModelDirectory(finished).about().classes
    new = [str(number) for number in range(10) if str(number) not in known][:2]
    source_folders("digits", home / "known", ",".join(known), 10, "test")
    source_folders("digits", home / "new", ",".join(new), 20)
    return {"known": home / "known", "new": home / "new", "names": new}


def contents(folder, *parts):
    """A digest of every file below these parts of a folder."""
    files = [path for part in parts for path in [folder / part, *(folder / part).rglob("*")] if path.is_file()]
    assert files
    return {path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def names_of_run(path):
    """The files of the version that a run ended with."""
    abouts = {file: json.loads(file.read_text()) for file in (path / "versions").glob("*/about.json")}
    ((file, about),) = [(file, about) for file, about in abouts.items() if about["pinned"]]
    tensors = [name for part in about["tensors"].values() for name in part.values()]
    return [file.relative_to(path).as_posix(), *(f"tensors/{name}.safetensors" for name in tensors)]


def test_evaluate_agrees_with_the_metrics_of_the_run(finished, images):
    """The run evaluated the same ten test images per class, in gray as they are in the files."""
    metrics = json.loads((finished / "metrics.json").read_text())
    found = printed(etag("evaluate", finished, images["known"], "--json"))
    assert found["images"] == 40
    assert found["confusion"] == metrics["confusion"]
    assert found["accuracy"] == pytest.approx(metrics["last_accuracy"])


def test_predict_and_info(finished, images):
    done = etag("predict", finished, images["known"], "--format", "csv")
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert len(rows) == 40
    metrics = json.loads((finished / "metrics.json").read_text())
    right = sum(Path(row["path"]).parent.name == row["class"] for row in rows)
    assert right / 40 == pytest.approx(metrics["last_accuracy"])
    content = printed(etag("info", finished, "--json"))
    assert content["classes"] == metrics["class_names"]
    assert content["version"] == 3
    text = etag("info", finished).stdout
    assert "version 3; 4 classes" in text
    assert "method etag, images of 8 pixels per side" in text
    assert "neither images nor features of single images are stored" in text


@pytest.mark.slow
def test_export(finished, images, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    done = etag("export", finished, "--torch", tmp_path / "model.pt2", "--onnx", tmp_path / "model.onnx")
    assert done.returncode == 0, done.stderr
    classifier, about = ModelDirectory(finished).load_classifier()
    pixels = torch.randint(0, 256, (6, 1, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
    with torch.no_grad():
        expected = classifier(about.preprocess.centered(pixels)).exp().numpy()
    program = torch.export.load(tmp_path / "model.pt2").module()
    np.testing.assert_allclose(program(pixels.float() / 255)[0].detach().numpy(), expected, atol=1e-4)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    found, familiarity = session.run(None, {"photos": pixels.permute(0, 2, 3, 1).numpy()})
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(familiarity, expected.max(1), atol=1e-4)
    assert "threshold" not in session.get_modelmeta().custom_metadata_map, "a run is not calibrated"


def test_learn_adds_a_version_and_leaves_the_run_as_it_was(copied, images):
    files = names_of_run(copied)
    before = contents(copied, "metrics.json", "config.yaml", "report.html", "steps.jsonl", *files)
    predicted = etag("predict", copied, images["known"], "--format", "csv").stdout
    done = etag("learn", copied, images["new"], *SHORT)
    assert done.returncode == 0, done.stderr
    assert "2 new classes besides 4 known ones" in done.stdout
    directory = ModelDirectory(copied)
    assert (directory.version, directory.versions, directory.about().pinned) == (4, [3, 4], False)
    about = directory.about()
    assert about.classes[4:] == tuple(images["names"])
    assert (about.task_sizes, about.parent, about.pinned) == ((2, 1, 1, 2), 3, False)
    assert contents(copied, "metrics.json", "config.yaml", "report.html", "steps.jsonl", *files) == before
    assert printed(etag("evaluate", copied, images["new"], "--json"))["images"] == 40
    for _ in range(4):  # the run's version outlives any number of lessons
        again = etag("learn", copied, images["new"], "--update", *SHORT)
        assert again.returncode == 0, again.stderr
    assert directory.versions == [3, 6, 7, 8]
    assert contents(copied, "metrics.json", *files) == {
        key: value for key, value in before.items() if str(key) in ("metrics.json", *files)
    }
    assert predicted != etag("predict", copied, images["known"], "--format", "csv").stdout


def test_the_run_still_counts_as_finished_after_a_lesson(copied, images):
    assert etag("learn", copied, images["new"], *SHORT).returncode == 0
    before = contents(copied, "metrics.json", "versions", "tensors")
    done = etag(*run_words("etag", copied))
    assert done.returncode == 0, done.stderr
    assert "already contains this run, finished" in done.stdout
    assert contents(copied, "metrics.json", "versions", "tensors") == before


def test_rollback_returns_to_the_version_of_the_run(copied, images):
    predicted = etag("predict", copied, images["known"], "--format", "csv").stdout
    assert etag("learn", copied, images["new"], *SHORT).returncode == 0
    done = etag("models", "rollback", copied)
    assert done.returncode == 0, done.stderr
    assert "is at version 3 again" in done.stdout
    assert etag("predict", copied, images["known"], "--format", "csv").stdout == predicted
    assert "has no version before 3" in refused(etag("models", "rollback", copied))


def test_what_would_alter_the_result_of_a_run_is_refused(copied, images):
    before = contents(copied, "metrics.json", "versions", "tensors")
    name = ModelDirectory(copied).about().classes[0]
    assert "holds the result of a run, which is never altered" in refused(etag("forget", copied, name))
    assert "copy the directory without its metrics.json" in refused(etag("models", "strip", copied))
    assert contents(copied, "metrics.json", "versions", "tensors") == before
    assert etag("learn", copied, images["new"], *SHORT).returncode == 0
    assert "never altered" in refused(etag("forget", copied, name)), "the run's version would be deleted"
    files = names_of_run(copied)
    before = contents(copied, "metrics.json", *files)
    assert etag("models", "strip", copied).returncode == 0, "the version of the lesson may be stripped"
    assert contents(copied, "metrics.json", *files) == before


def test_a_copy_without_the_metrics_may_be_stripped_and_may_forget(copied, images):
    for name in ("metrics.json", "config.yaml"):
        (copied / name).unlink()
    directory = ModelDirectory(copied)
    name = directory.about().classes[-1]
    assert etag("forget", copied, name).returncode == 0
    assert len(directory.versions) == 1, "the version of the run, which knows the class, is gone"
    assert etag("models", "strip", copied).returncode == 0
    assert etag("predict", copied, images["known"]).returncode == 0


def test_joint_cannot_learn_more(home, images):
    assert etag(*run_words("joint", home / "joint")).returncode == 0
    assert "joint needs the images of all lessons" in refused(etag("learn", home / "joint", images["new"], *SHORT))
    assert etag("predict", home / "joint", images["known"]).returncode == 0
    assert ModelDirectory(home / "joint").versions == [3]


@pytest.mark.slow
def test_a_run_that_skipped_its_last_generator_cannot_learn_more(home, images):
    out = home / "untrained"
    assert etag(*run_words("etag", out, **{"method.generator.last_task": False})).returncode == 0
    message = refused(etag("learn", out, images["new"], *SHORT))
    assert "cannot learn more: its run did not train the generator in the last task" in message
    assert etag("predict", out, images["known"]).returncode == 0


def test_a_fixed_head_cannot_learn_more(home, images):
    out = home / "fixed"
    assert etag(*run_words("fine", out, **{"method.head.growth": "fixed"})).returncode == 0
    message = refused(etag("learn", out, images["new"], *SHORT))
    assert "method.head.growth=fixed needs to know how many classes will come" in message


@pytest.mark.parametrize("tasks", [0, 1])
def test_an_unfinished_run_is_not_a_model_to_learn_on(tmp_path, images, monkeypatch, tasks):
    """Also before its first version: the directory belongs to the run."""
    save = ModelDirectory.save

    def stop(self, method, about, keep):
        if tasks == len(about.history) - 1:
            raise KeyboardInterrupt
        save(self, method, about, keep)

    monkeypatch.setattr(ModelDirectory, "save", stop)
    assert etag(*run_words("fine", tmp_path / "run")).returncode == 130
    monkeypatch.undo()
    assert ModelDirectory(tmp_path / "run").exists() == bool(tasks)
    before = contents(tmp_path / "run", ".")
    message = refused(etag("learn", tmp_path / "run", images["new"], *SHORT))
    assert "holds an unfinished run: finish it with `etag run` first" in message
    assert contents(tmp_path / "run", ".") == before
    done = etag(*run_words("fine", tmp_path / "run"))
    assert done.returncode == 0, done.stderr


def test_an_old_run_directory_gives_one_sentence(tmp_path, images):
    """Runs of earlier commits hold model.json and model.safetensors, and no versions."""
    (tmp_path / "old").mkdir()
    for name, text in {"config.yaml": "seed: 0\n", "metrics.json": "{}", "model.json": '{"format": 1}'}.items():
        (tmp_path / "old" / name).write_text(text)
    (tmp_path / "old" / "model.safetensors").write_bytes(b"")
    for command in ("predict", "evaluate", "learn"):
        assert "is not a model directory" in refused(etag(command, tmp_path / "old", images["known"]))
    assert "is not a model directory" in refused(etag("info", tmp_path / "old"))
    assert "already holds a finished run of another configuration" in refused(
        etag(*run_words("fine", tmp_path / "old"))
    )


def test_tensor_files_are_named_after_their_content(finished):
    for path in (finished / "tensors").iterdir():
        assert checksum(path.read_bytes()) == path.stem


@pytest.mark.parametrize(
    "method", [pytest.param("dgr", marks=pytest.mark.slow), pytest.param("gc", marks=pytest.mark.slow), "il2m"]
)
def test_other_methods_learn_on_from_a_run(home, images, method):
    own = {"dgr": {"method.generator.train.epochs": 2}, "gc": {"method.generator.train.steps": 4}}.get(method, {})
    out = home / method
    assert etag(*run_words(method, out, **{"train.epochs": 2}, **own)).returncode == 0
    done = etag("learn", out, images["new"], *SHORT)
    assert done.returncode == 0, done.stderr
    assert len(ModelDirectory(out).about().classes) == 6
    if method == "dgr":
        generators = [
            json.loads(file.read_text())["tensors"]["learner"]["generator"] for file in out.rglob("about.json")
        ]
        assert len(set(generators)) == 2, "its generator was trained: more classes may follow"
