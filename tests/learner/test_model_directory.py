"""The model directory: versions, shared tensor files, damage."""

import json
import shutil
import threading
from dataclasses import replace

import pytest
import torch
from tests.runs import tensors

from etag.core.errors import EtagError
from etag.learner.model_directory import ModelDirectory
from etag.learner.versions import ModelInfo, name_to_json

QUICK = {
    "gc": {"method.features.passes": 1, "method.generator.train.steps": 3},
    "bir": {"method.features.passes": 1, "method.generator": {"hidden": 16, "train": {"steps": 3, "batch_size": 8}}},
}


def content(directory, version):
    return json.loads((directory.path / "versions" / str(version) / "about.json").read_text())


def file_of(directory, version, part="classifier", name="backbone"):
    """The tensor file of a part of a version."""
    return directory.path / "tensors" / f"{content(directory, version)['tensors'][part][name]}.safetensors"


def used_files(directory):
    """The files that the stored versions name."""
    return {
        f"{name}.safetensors"
        for version in directory.versions
        for part in content(directory, version)["tensors"].values()
        for name in part.values()
    }


@pytest.mark.parametrize("method", ["gc", "bir"])
def test_a_frozen_backbone_is_one_file_that_versions_share(course, method):
    made = course(method, **QUICK[method])
    made.learn(0, 1, 2)
    directory = made.directory
    assert directory.versions == [1, 2, 3]
    files = {file_of(directory, version) for version in (1, 2, 3)}
    assert len(files) == 1
    (backbone,) = files
    assert len({file_of(directory, version, name="rule") for version in (1, 2, 3)}) == 3
    assert {path.name for path in (directory.path / "tensors").iterdir()} == used_files(directory)
    directory.drop_versions(keep=1)
    assert directory.versions == [3]
    assert backbone.is_file(), "version 3 still uses it"
    assert {path.name for path in (directory.path / "tensors").iterdir()} == used_files(directory)
    other = course("fine", "other", seed=1).learn(0)
    directory.save(other.method, other.about, keep=1)
    assert directory.versions == [4]
    assert not backbone.exists(), "it was removed with its last user"
    assert {path.name for path in (directory.path / "tensors").iterdir()} == used_files(directory)


def test_a_trained_backbone_is_a_new_file(course):
    made = course("fine")
    made.learn(0, 1)
    assert file_of(made.directory, 1) != file_of(made.directory, 2)
    assert file_of(made.directory, 1).is_file()


def test_only_the_newest_versions_and_pinned_ones_are_stored(course):
    made = course("fine", split="b2-4x1")
    made.learn(0, keep_versions=3, pinned=True)
    directory = made.directory
    (directory.path / "metrics.json").touch()  # the directory of a finished run
    made.learn(1, 2, 3, 4, keep_versions=2)
    assert directory.versions == [1, 4, 5]
    assert (directory.version, directory.about().parent) == (5, 4)
    assert {path.name for path in (directory.path / "tensors").iterdir()} == used_files(directory)


def test_rollback_follows_the_parents(course):
    made = course("fine", split="b2-2x1")
    made.learn(0, 1)
    assert made.directory.rollback() == 1
    made.learn(1)
    assert (made.directory.version, made.directory.about().parent) == (3, 1)
    assert made.directory.rollback() == 1
    with pytest.raises(EtagError, match="has no version before 1 to return to"):
        made.directory.rollback()


def test_what_is_loaded_is_what_was_saved(course, every_method):
    """The classifier and the learner of every method, after its base task and after the second."""
    made = course(every_method, split="b2-1x2", **_short(every_method))
    learner = made.learner()
    for index in (0, 1):
        task = made.scenario.training_task(made.scenario.tasks[index], learner.method.info.all_data)
        learner.learn(task, made.plan(index))
        images = made.preprocess.centered(made.scenario.tasks[0].test.pixels)
        classifier, about = made.directory.load_classifier()
        method, same = made.directory.load_method()
        assert about == same == replace(learner.about, parent=about.parent)
        with torch.no_grad():
            expected = learner.method.classifier().eval()(images)
            torch.testing.assert_close(classifier(images), expected, rtol=1e-5, atol=1e-5)
        left, right = tensors(method), tensors(learner.method)
        assert left.keys() == right.keys()
        assert [name for name in left if not torch.equal(left[name], right[name])] == []
        assert made.directory.sizes().keys() == {"classifier", "learner"}


def _short(method):
    plain = method.removeprefix("e")
    if plain in QUICK:
        return QUICK[plain]
    if plain == "abd":
        return {"method.generator": {"latent": 8, "train": {"steps": 4, "batch_size": 8}}}
    has_generator = method in ("gfr", "egfr", "etag", "b0", "b1", "b2", "b3", "dgr", "edgr", "tag")
    return {"method.generator.train.epochs": 1, "method.generator.feature_passes": 1} if has_generator else {}


@pytest.fixture(scope="module")
def saved(runtime, tmp_path_factory):
    """A model that nobody may change."""
    from tests.learner.conftest import Course

    course = Course(runtime, tmp_path_factory.mktemp("saved") / "model", "fine")
    course.learn(0, 1)
    return course.directory.path


@pytest.fixture
def copied(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "copy")
    return ModelDirectory(tmp_path / "copy")


def change(directory, **values):
    file = directory.path / "versions" / str(directory.version) / "about.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize("damage", ["cut", "missing", "sizes", "structure", "rule", "empty", "list", "config"])
def test_a_damaged_model_is_refused_in_one_sentence(copied, damage):
    file, about = file_of(copied, 2), copied.path / "versions" / "2" / "about.json"
    structure = content(copied, 2)["structure"]
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:1000])
    elif damage == "missing":
        file.unlink()
    elif damage == "sizes":
        change(copied, task_sizes=[2, 5])
    elif damage == "structure":
        change(copied, structure=structure | {"channels": 7})
    elif damage == "rule":
        change(copied, structure=structure | {"rule": {"kind": "os.system"}})
    elif damage == "config":
        change(copied, config={"method": {"name": "nobody"}})
    else:
        about.write_text({"empty": "", "list": "[1, 2]"}[damage])
    with pytest.raises(EtagError) as refused:
        copied.load_classifier() if damage in ("structure", "rule") else copied.load_method()
    assert "\n" not in str(refused.value)
    assert "cannot be read" in str(refused.value) or "unknown method 'nobody'" in str(refused.value)


@pytest.mark.parametrize(("number", "advice"), [(99, "update etag"), (1, "learn the classes again with this etag")])
def test_another_format_is_refused(copied, number, advice):
    change(copied, format=number)
    for read in (copied.about, copied.load_classifier, copied.load_method, copied.sizes):
        with pytest.raises(EtagError, match=f"has format {number}, and this version of etag reads format 3: {advice}"):
            read()


def test_a_version_that_was_not_finished_is_ignored(copied, course):
    (copied.path / "versions" / ".3.part").mkdir()
    (copied.path / "versions" / "notes").mkdir()
    assert copied.versions == [1, 2]
    made = course("fine", "copy")
    made.learn(2)
    assert copied.version == 3
    assert not (copied.path / "versions" / ".3.part").exists()


def test_one_process_changes_a_model_at_a_time(copied):
    found = []

    def change_too():
        try:
            copied.rollback()
        except EtagError as error:
            found.append(str(error))

    with copied.locked():
        thread = threading.Thread(target=change_too)
        thread.start()
        thread.join()
    assert found == [f"another process is changing '{copied.path}': wait until it is done."]
    assert copied.version == 2


def test_a_directory_where_nothing_was_learned_is_removed(tmp_path):
    directory = ModelDirectory(tmp_path / "new")
    with directory.locked():
        assert (tmp_path / "new" / "versions").is_dir()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["cat", 3, 2.5, True, None, ("a", 1), (("a", None), 2)])
def test_class_names_survive(saved, name):
    about = ModelDirectory(saved).about()
    changed = ModelInfo.from_json(json.loads(json.dumps(replace(about, classes=(name,), task_sizes=(1,)).to_json())))
    assert changed.classes == (name,)
    assert type(changed.classes[0]) is type(name)


@pytest.mark.parametrize("name", [frozenset(), b"cat", ("a", frozenset())])
def test_a_class_name_that_json_cannot_hold_is_refused(name):
    with pytest.raises(EtagError, match="names are text, numbers, or tuples of these"):
        name_to_json(name)
