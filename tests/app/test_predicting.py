"""Predicting: files, folders, patterns and lists; what is rejected; what is read."""

import csv
import io
import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from tests.app.conftest import etag, printed, refused

from etag.app.predicting import predict_files, predict_pixels
from etag.data.folders import list_images
from etag.learner.model_directory import ModelDirectory


def test_predicting_reads_nothing_that_only_learning_needs(copied, digits_folder):
    files = list_images(digits_folder("test", range(5), first=100, count=20))
    before = etag("predict", copied, *files[:7], "--format", "csv")
    assert before.returncode == 0, before.stderr
    names = json.loads((copied / "versions" / "2" / "about.json").read_text())["tensors"]
    assert set(names["classifier"]) == {"backbone", "rule"}
    assert set(names["learner"]) == {"solver", "generator"}
    solver = load_file(copied / "tensors" / f"{names['learner']['solver']}.safetensors")
    assert solver, "the auxiliary classifiers"
    assert all(name.startswith("auxiliaries.") for name in solver), "the classifier's own tensors are stored once"
    for file in names["learner"].values():
        (copied / "tensors" / f"{file}.safetensors").unlink()
    assert etag("predict", copied, *files[:7], "--format", "csv").stdout == before.stdout
    assert "cannot be read" in refused(etag("learn", copied, digits_folder("third", (5, 6))))


def test_a_stripped_model_predicts_but_does_not_learn(copied, digits_folder):
    files = list_images(digits_folder("test", range(5), first=100, count=20))
    before = etag("predict", copied, *files, "--format", "csv").stdout
    done = etag("models", "strip", copied)
    assert done.returncode == 0, done.stderr
    assert "can predict but no longer learn" in done.stdout
    assert etag("predict", copied, *files, "--format", "csv").stdout == before
    assert len(list((copied / "tensors").iterdir())) == 2, "backbone and prediction rule"
    assert printed(etag("info", copied, "--json"))["bytes"]["learner"] == 0
    for words in ([], ["--update"]):
        folder = digits_folder("more", (1, 4), first=40, count=30) if words else digits_folder("third", (5, 6))
        message = refused(etag("learn", copied, folder, *words))
        assert (
            "can predict but not learn: `etag models strip` removed its generator, solver. Start a new model."
            in message
        )
    assert "can predict but not learn" in refused(etag("forget", copied, "digit 1"))


def test_loading_a_classifier_builds_no_method_and_reads_about_json_once(copied, digits_folder, monkeypatch):
    from etag.learner import config
    from etag.methods.registry import MethodRegistry

    def never(*_, **__):
        raise AssertionError("no method may be built or looked up")

    for owner, name in ((config, "create_method"), (MethodRegistry, "__getitem__")):
        monkeypatch.setattr(owner, name, never)
    reads, read_bytes = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: reads.append(path.name) or read_bytes(path))
    state = torch.get_rng_state()
    classifier, _ = ModelDirectory(copied).load_classifier()
    assert reads.count("about.json") == 1
    assert torch.equal(torch.get_rng_state(), state), "nothing is drawn"
    assert not classifier.training
    assert not any(parameter.requires_grad for parameter in classifier.parameters())
    reads.clear()
    files = list_images(digits_folder("test", range(5), first=100, count=20))
    assert etag("predict", copied, *files[:3]).returncode == 0
    assert reads.count("about.json") == 1


def test_a_classifier_returns_log_probabilities(learned):
    classifier, about = ModelDirectory(learned).load_classifier()
    pixels = torch.randint(0, 256, (5, 3, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
    found = classifier(about.preprocess.centered(pixels))
    torch.testing.assert_close(found.logsumexp(1), torch.zeros(5), atol=1e-5, rtol=0)
    assert classifier.temperature == about.temperature != 1.0
    torch.testing.assert_close(predict_pixels(classifier, about, pixels)[0], found.exp())


def test_predictions_in_all_forms_from_files_folders_patterns_and_lists(learned, digits_folder):
    folder = digits_folder("test", range(5), first=100, count=20)
    files = list_images(folder)
    table = list(csv.DictReader(io.StringIO(etag("predict", learned, folder, "--format", "csv").stdout)))
    assert [row["path"] for row in table] == files
    assert list(table[0]) == ["path", "class", "probability", "rejected", "guess"]
    assert all(row["class"] == ("" if row["rejected"] == "true" else row["guess"]) for row in table)
    assert all(0 < float(row["probability"]) <= 1 for row in table)
    by_pattern = etag("predict", learned, str(folder / "digit 3" / "*.png"), "--format", "csv").stdout
    from_list = etag("predict", learned, "--format", "csv", stdin="\n".join(files[60:80]) + "\n").stdout
    assert by_pattern == from_list
    assert len(by_pattern.splitlines()) == 21
    lines = etag("predict", learned, files[0], "--format", "json", "--top", 3).stdout.splitlines()
    predictions = json.loads(lines[0])["predictions"]
    assert len(predictions) == 3
    likely = [prediction["probability"] for prediction in predictions]
    assert likely == sorted(likely, reverse=True)
    assert predictions[0]["class"] == table[0]["guess"]
    assert files[0] in etag("predict", learned, files[0]).stdout


def test_files_that_cannot_be_read_do_not_stop_the_rest(learned, digits_folder, tmp_path):
    good = list_images(digits_folder("test", range(5), first=100, count=20))[:2]
    (tmp_path / "bad.png").write_bytes(b"no image at all")
    done = etag("predict", learned, good[0], tmp_path / "bad.png", tmp_path / "missing.png", good[1], "--format", "csv")
    assert done.returncode == 1
    assert [row["path"] for row in csv.DictReader(io.StringIO(done.stdout))] == good
    assert f"{tmp_path / 'bad.png'} cannot be read: not an image." in done.stderr
    assert f"{tmp_path / 'missing.png'} cannot be read: file not found." in done.stderr


def test_what_is_unlike_all_classes_can_be_rejected(learned, digits_folder):
    files = list_images(digits_folder("test", range(5), first=100, count=20))
    classifier, about = ModelDirectory(learned).load_classifier()
    predictions = list(predict_files(classifier, about, files, reject=True))
    rejected = [prediction for prediction in predictions if prediction.rejected]
    assert 0 < len(rejected) < 50, "most images of known classes pass"
    for prediction in predictions:
        assert prediction.rejected == (prediction.probabilities[0] < about.threshold)
        assert prediction.name == (None if prediction.rejected else prediction.classes[0])
    plain = list(predict_files(classifier, about, files))  # the highest probability is no sure guide
    assert [one.classes for one in plain] == [one.classes for one in predictions]
    assert not any(one.rejected for one in plain)


def test_rejected_images_are_said_to_be_with_their_best_guess_and_the_cost(learned, digits_folder):
    folder = digits_folder("test", range(5), first=100, count=20)
    done = etag("predict", learned, folder, "--format", "csv", "--reject")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    rejected = [row for row in rows if row["rejected"] == "true"]
    assert rejected
    assert all(row["class"] == "" and row["guess"].startswith("digit ") for row in rejected)
    assert (
        f"{len(rejected)} of 100 images are rejected: they are unlike all known classes. The threshold should "
        "reject 5% of images of known classes, and may reject many more of old ones; --no-reject names a class for "
        "every image." in done.stderr
    )
    lines = etag("predict", learned, folder, "--reject").stdout.splitlines()
    assert sum("(none of these), at most: " in line for line in lines) == len(rejected)
    values = [
        json.loads(line)
        for line in etag("predict", learned, folder, "--format", "json", "--reject").stdout.splitlines()
    ]
    assert [value["class"] is None for value in values] == [value["rejected"] for value in values]
    plain = etag("predict", learned, folder, "--format", "csv", "--no-reject")
    assert plain.stderr == ""
    assert [row["class"] for row in csv.DictReader(io.StringIO(plain.stdout))] == [row["guess"] for row in rows]


def test_probabilities_do_not_depend_on_the_batch(learned):
    classifier, about = ModelDirectory(learned).load_classifier()
    pixels = torch.randint(0, 256, (9, 3, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
    together, _ = predict_pixels(classifier, about, pixels)
    torch.testing.assert_close(together.sum(1), torch.ones(9))
    apart = torch.cat([predict_pixels(classifier, about, row[None])[0] for row in pixels])
    torch.testing.assert_close(apart, together, rtol=1e-4, atol=1e-6)


def test_features_are_computed_in_the_precision_of_the_device(learned, monkeypatch):
    classifier, about = ModelDirectory(learned).load_classifier()
    pixels = torch.randint(0, 256, (9, 3, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
    seen = []
    classifier.backbone.register_forward_hook(lambda *given: seen.append(given[-1].dtype))
    exact, _ = predict_pixels(classifier, about, pixels)
    monkeypatch.setenv("ETAG_PRECISION", "bf16-mixed")
    found, familiarity = predict_pixels(classifier, about, pixels)
    assert seen == [torch.float32, torch.bfloat16]
    assert found.dtype == familiarity.dtype == torch.float32
    torch.testing.assert_close(found.sum(1), torch.ones(9))
    assert 0 < (found - exact).abs().max() < 0.1
