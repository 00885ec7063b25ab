"""Model directories as a stranger may send them, and commands that are killed between two changes of files."""

import json
import os
import shutil
import signal
import socket
import threading
from contextlib import contextmanager

import pytest
import torch
from tests.app.conftest import etag
from tests.runs import small_config

from etag import IncrementalClassifier
from etag.app.class_changes import forget_class
from etag.core.errors import EtagError
from etag.core.files import checksum
from etag.experiments.run_directory import RunDirectory
from etag.learner.model_directory import ModelDirectory

SECONDS = 60  # more than any refusal takes


@contextmanager
def at_once():
    """Fail instead of hanging."""

    def hang(*_):
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def about_file(model):
    return model.path / "versions" / str(model.version) / "about.json"


def change(model, **values):
    """Change the current version's about.json as a forger would, who knows how checksums are computed."""
    content = json.loads(about_file(model).read_text()) | values
    content.pop("checksum", None)
    content["checksum"] = checksum(json.dumps(content, sort_keys=True).encode())
    about_file(model).write_text(json.dumps(content))
    (model.path / "current").write_text(f"{model.version} {content['checksum']}")


def change_tensors(model, part, alter):
    """Replace a tensor file of the classifier by an altered one, correctly named."""
    content = json.loads(about_file(model).read_text())
    tensors = model._tensors.read(content["tensors"]["classifier"][part])
    alter(tensors)
    content["tensors"]["classifier"][part] = model._tensors.write(tensors)
    change(model, tensors=content["tensors"])


def refusal(work):
    """The one sentence with which it is refused."""
    with at_once(), pytest.raises(EtagError) as refused:
        work()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def used_tensors(model):
    names = set()
    for version in model.versions:
        content = json.loads((model.path / "versions" / str(version) / "about.json").read_text())
        names |= {name for part in content["tensors"].values() for name in part.values()}
    return names


# -- killed between two changes --------------------------------------------------------------------------------------


def test_forgetting_that_was_killed_anywhere_is_completed(saved, tmp_path, changes):
    name = ModelDirectory(saved).about().classes[1]
    for last in range(1000):
        model = ModelDirectory(tmp_path / str(last) / "model")
        shutil.copytree(saved, model.path)
        done = changes.cut_after(last, lambda model=model: forget_class(model.path, name))
        switched = model.version > 3
        if switched and not done and last % 2:  # whatever is done next
            assert "no version before" in refusal(model.rollback)
        else:
            if not done:
                forget_class(model.path, name)  # the same command again
            assert "knows no class" in refusal(lambda model=model: forget_class(model.path, name))
        assert model.versions == [model.version]
        assert name not in model.about().classes
        assert {path.stem for path in (model.path / "tensors").iterdir()} == used_tensors(model)
        assert sorted(path.name for path in model.path.iterdir()) == [".lock", "current", "tensors", "versions"]
        shutil.rmtree(model.path)
        if done:
            assert last > 10
            return


def test_a_restart_that_was_killed_anywhere_is_completed(saved, tmp_path, changes):
    config = small_config("fine")
    for last in range(1000):
        directory = RunDirectory(tmp_path / str(last))
        with directory.locked():
            directory.begin(config, restart=False)
        shutil.copytree(saved, directory.path, dirs_exist_ok=True)
        (directory.path / "metrics.json").write_text("{}")

        def begin(directory=directory, config=config):
            with directory.locked():
                directory.begin(config.model_copy(update={"seed": 1}), restart=True)

        done = changes.cut_after(last, begin)
        if last == 0:
            continue  # nothing was changed: it is still the old run
        with directory.locked():
            directory.begin(config.model_copy(update={"seed": 1}), restart=False)
        assert not directory.model.exists()
        assert sorted(path.name for path in directory.path.iterdir()) == [".lock", "config.yaml", "versions"]
        if done:
            assert last > 10
            return


def test_a_first_lesson_that_was_killed_at_its_beginning_can_be_given_again(tmp_path, changes):
    for last in range(1000):
        model = ModelDirectory(tmp_path / str(last))

        def begin(model=model):
            with model.locked():
                model.unfinished.prepare(model.version_or_zero, "a lesson")

        done = changes.cut_after(last, begin)
        begin()
        assert (model.unfinished.folder / "task").is_file()
        if done:
            return


def test_checkpoints_of_a_finished_lesson_are_removed_by_the_next_command(model, changes):
    method, about = model.load_method()
    model.unfinished.prepare(model.version_or_zero, "a lesson")
    for last in range(1000):
        before = model.version
        if changes.cut_after(last, lambda: model.save(method, about)):
            break
        if model.version != before:
            with model.locked():
                pass
            assert not model.unfinished.exists()
            return
    pytest.fail("the new version was never current with its checkpoints left")


# -- readers and writers ---------------------------------------------------------------------------------------------


def test_readers_see_one_version_while_others_are_saved(model):
    method, about = model.load_method()
    temperatures, stop, failures = (1.0, 2.0), threading.Event(), []

    def write():
        number = 0
        while not stop.is_set():
            number += 1
            with torch.no_grad():
                method.solver.head.weight.fill_(temperatures[number % 2])
            changed = type(about)(**about.__dict__ | {"temperature": temperatures[number % 2]})
            model.save(method, changed, keep=1)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(40):
            try:
                classifier, read = model.load_classifier()
                if classifier.temperature != read.temperature:
                    failures.append("a mixture of two versions")
                model.sizes(), model.about()
            except EtagError as error:
                failures.append(str(error))
    finally:
        stop.set()
        writer.join()
    assert failures == []


# -- rollback --------------------------------------------------------------------------------------------------------


def test_rollback_follows_history_and_never_chooses_an_orphan(course):
    made = course("fine", split="b2-3x1")
    made.learn(0, 1)
    directory = made.directory
    assert directory.rollback() == 1
    made.learn(1)  # version 3, from 1
    shutil.copytree(directory.path / "versions" / "3", directory.path / "versions" / "4")  # never became current
    assert directory.version == 3
    assert directory.rollback() == 1
    made.learn(1)  # version 5, from 1: the orphan goes
    assert directory.rollback() == 1
    assert 4 not in directory.versions


def test_ancestors_are_stored_rather_than_versions_that_were_given_up(course):
    made = course("fine", split="b2-3x1")
    made.learn(0, 1, keep_versions=2)  # 1, 2
    made.directory.rollback()
    made.learn(1, keep_versions=2)  # 3, from 1
    assert made.directory.versions == [1, 3]
    assert made.directory.rollback() == 1


@pytest.mark.parametrize("damage", ["about", "tensors", "missing"])
def test_a_damaged_version_is_refused_before_it_becomes_current(model, damage):
    about = model.path / "versions" / "2" / "about.json"
    names = json.loads(about.read_text())["tensors"]["classifier"]
    file = model.path / "tensors" / f"{names['backbone']}.safetensors"
    if damage == "about":
        about.write_text(about.read_text().replace('"images": ', '"images": 1', 1))
    elif damage == "tensors":
        data = bytearray(file.read_bytes())
        data[-3] ^= 4
        file.write_bytes(data)
    else:
        file.unlink()
    assert "version 2" in refusal(model.rollback)
    assert model.version == 3


# -- damage and forgery ----------------------------------------------------------------------------------------------


def test_a_flipped_bit_in_any_file_is_noticed(saved, tmp_path):
    images = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    expected = ModelDirectory(saved).load_classifier()[0](images)
    model = ModelDirectory(tmp_path / "model")
    shutil.copytree(saved, model.path)
    silent = []
    for file in sorted(path for path in model.path.rglob("*") if path.is_file() and path.name != ".lock"):
        data = file.read_bytes()
        for place in {0, len(data) // 3, len(data) - 1}:
            bit, damaged = place % 8, bytearray(data)
            damaged[place] ^= 1 << bit
            file.write_bytes(damaged)
            for read in (model.load_classifier, model.load_method, model.about):
                try:
                    result = read()
                except EtagError:
                    continue
                if model.version != 3 or (
                    read == model.load_classifier and not torch.equal(result[0](images), expected)
                ):
                    silent.append((file.name, place, bit))
        file.write_bytes(data)
    assert silent == []


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"threshold": float("inf")}, "threshold"),
        ({"classes": ["a", "b", "c", "d", "e"]}, "5 class names, but 4"),
        ({"classes": ["a", "b", "c", "c"]}, "twice"),
        ({"classes": ["a", "b", "c", ["d"]]}, "name"),
        ({"classes": ["a", "b", "c", {"x": 1}]}, "name"),
        ({"channels": 0}, "channels"),
        ({"parent": "../../x"}, "parent"),
    ],
    ids=str,
)
def test_numbers_and_names_that_are_none(model, values, says):
    change(model, **values)
    assert says in refusal(model.load_classifier)


@pytest.mark.parametrize(
    "values",
    [{"std": [0.0]}, {"std": [float("nan")]}, {"mean": [float("inf")]}, {"size": 0}, {"size": 10**9}, {"std": []}],
    ids=str,
)
def test_a_preprocessing_that_cannot_be(model, values):
    preprocess = json.loads(about_file(model).read_text())["preprocess"]
    change(model, preprocess=preprocess | values)
    assert next(iter(values)) in refusal(model.load_classifier)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["backbone", "rule"])
def test_weights_that_are_not_finite_are_named(model, part, value):
    changed = []

    def alter(tensors):
        name = next(name for name, tensor in tensors.items() if tensor.is_floating_point())
        tensors[name].flatten()[0] = value
        changed.append(name)

    change_tensors(model, part, alter)
    for load in (model.load_classifier, model.load_method):
        assert f"'{changed[0]}' contains NaN or infinity" in refusal(load)


@pytest.fixture
def with_statistics(course):
    """A model that knows from class statistics how familiar an image is."""
    made = course("ncm")
    made.learn(0, 1)
    return made.directory


def _one_more_class(tensors):
    for name in ("weight", "bias", "distances"):
        tensors[name] = torch.cat([tensors[name], tensors[name][:1]])
    tensors["mixing"] = torch.eye(len(tensors["bias"]))


@pytest.mark.parametrize(
    ("alter", "says"),
    [
        (lambda tensors: tensors["mixing"].fill_(float("nan")), "'mixing' contains NaN or infinity"),
        (lambda tensors: tensors["weight"].fill_(float("inf")), "'weight' contains NaN or infinity"),
        (lambda tensors: tensors.update(bias=torch.zeros(1)), "'familiarity.bias' has the shape (1,)"),
        (lambda tensors: tensors.update(weight=tensors["weight"][:, 1:].clone()), "'familiarity.weight' has the shape"),
        (lambda tensors: tensors.update(distances=torch.zeros(())), "'familiarity.distances' has the shape ()"),
        (lambda tensors: tensors.pop("mixing"), "Familiarity"),
        (_one_more_class, "has the shape (4, 32), but (3, 32) is expected"),
    ],
    ids=["NaN", "infinity", "broadcast", "narrow", "scalar", "missing", "more means than classes"],
)
def test_a_familiarity_that_cannot_be(with_statistics, alter, says):
    change_tensors(with_statistics, "familiarity", alter)
    assert says in refusal(with_statistics.load_classifier)


@pytest.mark.parametrize(
    "value",
    [
        *({"module": "Familiarity", "size": size} for size in (7, -1, 1 << 60, "x", None)),
        *({"module": "CosineRule", "size": 32}, "x", 3, [], {}),
    ],
    ids=str,
)
def test_a_description_of_another_familiarity(with_statistics, value):
    structure = json.loads(about_file(with_statistics).read_text())["structure"]
    change(with_statistics, structure=structure | {"familiarity": value})
    assert "cannot be read" in refusal(with_statistics.load_classifier)


def test_a_familiarity_without_tensors(model):
    structure = json.loads(about_file(model).read_text())["structure"]
    change(model, structure=structure | {"familiarity": {"module": "Familiarity", "size": 32}})
    assert "familiarity" in refusal(model.load_classifier)


def test_a_network_larger_than_its_weights_needs_no_memory(model):
    structure = json.loads(about_file(model).read_text())["structure"]
    change(model, structure=structure | {"model": structure["model"] | {"width": 1 << 20}})
    assert "cannot be read" in refusal(model.load_classifier)


@pytest.mark.parametrize(
    "name",
    ["hf-hub:owner/name", "hf_hub:owner/name", "local-dir:/tmp/x", "../x", "C:x", "x.y.z", "x\n", "", 3, None, ["x"]],
)
def test_a_backbone_of_timm_that_is_a_file_or_a_repository(model, name):
    structure = json.loads(about_file(model).read_text())["structure"]
    harmful = structure["model"] | {"backbone": "timm", "architecture": {"name": name}}
    change(model, structure=structure | {"model": harmful})
    assert "is not the name of a network of timm" in refusal(model.load_classifier)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "\x00", "{}", "3", '{"format": "x"}', "{" * 10])
def test_malformed_descriptions(model, text):
    about_file(model).write_text(text)
    for read in (model.about, model.load_classifier, model.load_method, model.sizes):
        assert "cannot be read" in refusal(read)


def test_a_stray_name_among_the_versions_is_ignored(model):
    for name in ("²", "٣", "-1", "007", "x", "4.5", "9" * 200):
        (model.path / "versions" / name).mkdir()
    (model.path / "versions" / "12").write_text("a file")
    assert model.versions == [1, 2, 3]
    assert model.rollback() == 2


@pytest.mark.parametrize("number", ["²", "", "-1", "9" * 5000, "1e3", "3\x00", "../../x"])
def test_a_malformed_current(model, number):
    (model.path / "current").write_text(number)
    assert "is not a model directory" in refusal(model.load_classifier)


# -- things that are not files ---------------------------------------------------------------------------------------


def _fifo(path):
    os.mkfifo(path)


def _socket(path):
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path may have 100 characters only
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


def _device(path):
    path.symlink_to("/dev/zero")


def _folder(path):
    path.mkdir()


@pytest.mark.parametrize("kind", [_fifo, _socket, _device, _folder])
@pytest.mark.parametrize("which", ["current", "about.json", "tensors"])
def test_what_is_not_a_file_is_refused_and_never_opened(model, which, kind):
    names = json.loads(about_file(model).read_text())["tensors"]["classifier"]
    files = {
        "current": model.path / "current",
        "about.json": about_file(model),
        "tensors": model.path / "tensors" / f"{names['backbone']}.safetensors",
    }
    files[which].unlink()
    kind(files[which])
    for read in (model.load_classifier, model.load_method, lambda: IncrementalClassifier.load(model.path)):
        refusal(read)


@pytest.mark.parametrize("name", ["tensors", "versions", "unfinished", "pages", ".lock", "current"])
def test_links_that_lead_outside_are_not_followed_when_something_is_written(model, tmp_path, name):
    victim = tmp_path / "victim"
    link = model.path / name
    if link.is_dir():
        shutil.copytree(link, victim)
        shutil.rmtree(link)
    elif name in ("unfinished", "pages"):
        victim.mkdir()
    else:
        victim.write_text(link.read_text() if link.exists() else "precious")
        link.unlink(missing_ok=True)
    if victim.is_dir():
        (victim / "precious.safetensors").write_text("precious")
        (victim / "precious").mkdir()
    link.symlink_to(victim)
    before = {path: path.read_bytes() for path in (victim, *victim.rglob("*")) if path.is_file()}
    assert "link" in refusal(model.rollback)
    assert {path: path.read_bytes() for path in (victim, *victim.rglob("*")) if path.is_file()} == before


# -- code ------------------------------------------------------------------------------------------------------------


def test_a_model_cannot_name_code_to_run(model, tmp_path):
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    config = json.loads(about_file(model).read_text())["config"]
    change(model, plugins=[str(tmp_path / "evil.py")], config=config | {"plugins": [str(tmp_path / "evil.py")]})
    for words in (["info", model.path], ["predict", model.path, tmp_path / "x.png"]):
        etag(*words)
    model.load_method()
    assert not (tmp_path / "ran").exists()


def test_a_model_that_needs_a_plug_in_says_which_and_how_to_allow_it(model):
    structure = json.loads(about_file(model).read_text())["structure"]
    change(model, code=["near.py"], structure=structure | {"rule": {"module": "Near"}})
    message = refusal(model.load_classifier)
    assert "near.py" in message
    assert "--plugin" in message
    config = json.loads(about_file(model).read_text())["config"]
    change(model, config=config | {"method": {"name": "near"}})
    message = refusal(model.load_method)
    assert "near.py" in message
    assert "--plugin" in message


# -- folders that change meanwhile -----------------------------------------------------------------------------------


def test_a_directory_that_disappears_while_it_learns(course):
    made = course("fine")
    learner = made.learner()
    train = learner.train

    def disappear(*arguments, **named):
        train(*arguments, **named)
        shutil.rmtree(made.directory.path)

    learner.train = disappear
    message = refusal(lambda: made.learn(0, learner=learner))
    assert str(made.directory.path) in message
