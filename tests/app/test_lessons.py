"""Lessons through the command line: learn, learn more, update, forget, roll back."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import save_file
from tests.app.conftest import etag, printed, refused, settings
from tests.small_transformers import SIDE, network, save

from etag.app.predicting import predict_pixels
from etag.data.folders import list_images
from etag.learner.model_directory import ModelDirectory


def test_what_is_known_after_two_lessons(learned):
    about = printed(etag("info", learned, "--json"))
    assert about["classes"] == [f"digit {digit}" for digit in range(5)]
    assert about["task_sizes"] == [3, 2]
    assert [lesson["kind"] for lesson in about["history"]] == ["learn", "learn"]
    assert [lesson["images"] for lesson in about["history"]] == [60, 40]
    assert about["versions"] == [1, 2]
    text = etag("info", learned).stdout
    assert "neither images nor features of single images are stored" in text
    assert "no guarantee" in text
    assert "digit 3, digit 4" in text


def test_a_rolled_back_model_predicts_as_before_and_learns_from_there(copied, digits_folder):
    done = etag("models", "rollback", copied)
    assert "version 1 again" in done.stdout
    assert printed(etag("info", copied, "--json"))["classes"] == ["digit 0", "digit 1", "digit 2"]
    assert "no version before 1" in refused(etag("models", "rollback", copied))
    assert etag("learn", copied, digits_folder("third", (5, 6)), "--set", "train.steps=4").returncode == 0
    about = printed(etag("info", copied, "--json"))
    assert about["classes"] == ["digit 0", "digit 1", "digit 2", "digit 5", "digit 6"]
    assert about["version"] == 3


def test_more_images_of_known_classes(copied, digits_folder):
    more = digits_folder("more", (1, 4), first=40, count=30)
    before, _ = ModelDirectory(copied).load_method()
    assert "known already (digit 1, digit 4): remove them, or pass their images with --update" in refused(
        etag("learn", copied, more)
    )
    done = etag("learn", copied, more, "--update")
    assert done.returncode == 0, done.stderr
    about = printed(etag("info", copied, "--json"))
    assert about["history"][-1]["kind"] == "update"
    assert about["history"][-1]["classes"] == ["digit 1", "digit 4"]
    assert about["classes"] == [f"digit {digit}" for digit in range(5)]
    after, _ = ModelDirectory(copied).load_method()
    old, now = before.solver.state_dict(), after.solver.state_dict()
    assert all(torch.equal(old[name], now[name]) for name in old if name.startswith("backbone")), "it is not trained"
    assert not torch.equal(old["head.blocks.0.weight"], now["head.blocks.0.weight"])
    assert "these are new: digit 5, digit 6" in refused(
        etag("learn", copied, digits_folder("third", (5, 6)), "--update")
    )


@pytest.mark.parametrize(("name", "sizes"), [("digit 1", [2, 2]), ("digit 4", [3, 1])])
def test_a_class_can_be_forgotten(copied, digits_folder, name, sizes):
    files = list_images(digits_folder("test", range(5), first=100, count=20))
    classifier, about = ModelDirectory(copied).load_classifier()
    pixels = torch.randint(0, 256, (9, 3, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
    before, removed = predict_pixels(classifier, about, pixels)[0], about.classes.index(name)
    done = etag("forget", copied, name)
    assert done.returncode == 0, done.stderr
    assert f"what remains of '{name}': weights of networks that were trained with its images." in done.stdout
    directory = ModelDirectory(copied)
    assert directory.versions == [3], "older versions know it still"
    classifier, about = directory.load_classifier()
    assert list(about.task_sizes) == sizes
    others = [place for place in range(5) if place != removed]
    renormalized = before[:, others] / before[:, others].sum(1, keepdim=True)
    torch.testing.assert_close(predict_pixels(classifier, about, pixels)[0], renormalized, rtol=1e-4, atol=1e-5)
    assert name not in json.dumps(printed(etag("info", copied, "--json")))
    assert name not in etag("predict", copied, *files, "--format", "csv").stdout.replace(f"/{name}/", "/")
    method, _ = directory.load_method()
    assert len(method.generator.network.decoder_in.rows) == 4
    on = etag("learn", copied, digits_folder("third", (5, 6)), "--set", "train.steps=4")
    assert on.returncode == 0, on.stderr
    assert f"knows no class '{name}'" in refused(etag("forget", copied, name))
    assert "did you mean 'digit 0'? Known are digit 0, " in refused(etag("forget", copied, "digit0"))


def test_a_dry_run_prints_what_would_be_done_and_leaves_no_model(digits_folder, tmp_path):
    done = etag("learn", tmp_path / "model", digits_folder("first", (0, 1, 2)), *settings(), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "3 new classes: 60 images to train on, 15 held out; 8x8 pixels" in done.stdout
    assert "this should take under a minute." in done.stdout
    assert not ModelDirectory(tmp_path / "model").exists()


OTHERS = ("gfr", "fine", "lwf", "il2m", "pass", "dgr")


@pytest.mark.parametrize("method", ["lucir", "gc", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_other_methods_learn_lessons_too(digits_folder, tmp_path, method):
    own = {
        "gfr": ["method.generator.train.steps=20", "method.generator.feature_passes=1"],
        "gc": ["method.generator.train.steps=20", "method.features.passes=1"],
        "dgr": ["method.generator.train.steps=20"],
    }.get(method, [])
    words = settings(*own, "train.steps=6", "train.base={steps: 6}", generator=False)
    for folder, more in (("first", ["--method", method, *words]), ("second", ["--set", "train.steps=6"])):
        digits = (0, 1, 2) if folder == "first" else (3, 4)
        done = etag("learn", tmp_path / "model", digits_folder(folder, digits), *more)
        assert done.returncode == 0, done.stderr
    stored = (
        "images are stored"
        if method in ("lucir", "il2m")
        else "neither images nor features of single images are stored"
    )
    assert stored in etag("info", tmp_path / "model").stdout
    found = printed(etag("evaluate", tmp_path / "model", digits_folder("second", (3, 4)), "--json"))
    assert found["images"] == 50


def test_etag_plus_trains_in_the_first_lesson_only_and_says_so(digits_folder, tmp_path):
    model = tmp_path / "model"
    first = etag("learn", model, digits_folder("first", (0, 1, 2)), "--method", "etag+", *settings(generator=False))
    assert first.returncode == 0, first.stderr
    assert "etag+, 120 steps of 16 images" in first.stdout
    weights = [part.clone() for part in ModelDirectory(model).load_classifier()[0].backbone.parameters()]
    second = etag("learn", model, digits_folder("second", (3, 4)))
    assert second.returncode == 0, second.stderr
    assert "etag+, one pass over the images" in second.stdout
    after = ModelDirectory(model).load_classifier()[0].backbone
    assert all(torch.equal(*pair) for pair in zip(weights, after.parameters(), strict=True))
    files = digits_folder("test", range(5), first=100, count=20)
    assert printed(etag("evaluate", model, files, "--json"))["accuracy"] > 0.7
    assert "neither images nor features of single images are stored" in etag("info", model).stdout
    done = etag("export", model, "--torch", tmp_path / "model.pt2")
    assert done.returncode == 0, done.stderr


def test_given_weights_are_frozen_and_get_a_head_in_closed_form(digits_folder, tmp_path):
    weights = save(network("vit"), tmp_path / "vit")
    done = etag("learn", tmp_path / "m", digits_folder("third", (5, 6)), "--weights", weights)
    assert done.returncode == 0, done.stderr
    assert f"a frozen vit, with the weights {weights}, and the method ridge: best for few" in done.stdout
    assert f"{SIDE}x{SIDE} pixels" in done.stdout  # what the weights expect
    done = etag("learn", tmp_path / "n", digits_folder("third", (5, 6)), "--weights", weights, "--from-scratch")
    assert (done.returncode, done.stderr) == (
        2,
        "error: --from-scratch is without pre-trained weights: leave it out, or leave out the weights.\n",
    )


def test_features_are_kept_only_if_asked(digits_folder, tmp_path, monkeypatch):
    weights, folder = save(network("vit"), tmp_path / "vit"), digits_folder("third", (5, 6))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept, words = tmp_path / "cache" / "etag" / "features", ["--weights", weights]
    assert etag("learn", tmp_path / "m", folder, *words).returncode == 0
    assert not kept.exists()
    done = etag("learn", tmp_path / "n", folder, *words, "--cache-features")
    assert f"features of these images stay in '{kept}' until you delete that folder." in done.stdout
    assert kept.stat().st_mode & 0o077 == 0, "nobody else can read it"
    (rows,) = kept.glob("*.rows")
    before = rows.read_bytes()
    assert len(before) > 0
    done = etag("learn", tmp_path / "o", folder, *words, "--cache-features")
    assert done.returncode == 0, done.stderr
    assert rows.read_bytes() == before
    predicted = [etag("predict", tmp_path / name, folder).stdout for name in "mno"]
    assert predicted[0] == predicted[1] == predicted[2] != ""


def test_training_starts_from_given_weights(learned, digits_folder, tmp_path):
    classifier, _ = ModelDirectory(learned).load_classifier()
    given = {name: value.contiguous() for name, value in classifier.backbone.state_dict().items()}
    save_file(given, tmp_path / "weights.safetensors")
    still = settings("train.lr=1e-9", "train.base={steps: 1, lr: 1e-9}", "train.weight_decay=0", "model.train=all")
    folder = digits_folder("third", (5, 6))
    words = ["--weights", tmp_path / "weights.safetensors", "--method", "etag"]
    done = etag("learn", tmp_path / "m", folder, *words, *still)
    assert done.returncode == 0, done.stderr
    assert "weights.safetensors" in done.stdout
    found = ModelDirectory(tmp_path / "m").load_classifier()[0].backbone.state_dict()
    for name, value in given.items():
        if value.is_floating_point() and "running" not in name:
            torch.testing.assert_close(found[name], value, atol=1e-6, rtol=0)


# -- what is said of classes whose images are gone ---------------------------------------------------


def test_after_a_later_lesson_only_honest_figures_of_old_classes_are_printed(copied, digits_folder):
    done = etag("learn", copied, digits_folder("third", (5, 6)), "--set", "train.steps=4")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    (taken,) = [line for line in lines if "were taken for a class of an earlier lesson" in line]
    held_out, right = 10, sum(int(line.split("(")[1].split(" of ")[0]) for line in lines if "  digit" in line)
    assert 0 <= int(taken.split(" of ")[0]) <= held_out - right
    history = printed(etag("info", copied, "--json"))["history"]
    for number, digits in enumerate(("digit 0, digit 1 and digit 2", "digit 3 and digit 4"), start=1):
        accuracy = history[number - 1]["evaluation"]["accuracy"]
        images = history[number - 1]["evaluation"]["images"]
        assert f"  lesson {number} ({digits}): {accuracy:.1%} of {images} held-out images" in lines
    assert f"`etag evaluate {copied} FOLDER` measures them now, on labeled images of yours." in lines
    assert "generated" not in done.stdout


def test_an_update_prints_what_happened_to_every_group_of_classes(copied, digits_folder):
    done = etag("learn", copied, digits_folder("more", (1, 4), first=40, count=30), "--update")
    assert done.returncode == 0, done.stderr
    assert "2 known classes: 48 images to train on, 12 held out" in done.stdout
    assert "updated 2 classes with 48 images" in done.stdout
    assert " new " not in done.stdout
    updated = re.search(r"updated classes: (\S+)% of 12 held-out images .* \(before the update (\S+)%", done.stdout)
    before = [int(word) for word in re.findall(r"of 6; before (\d)", done.stdout)]
    assert sum(before) / 12 == pytest.approx(float(updated[2]) / 100, abs=1e-3)
    assert ModelDirectory(copied).about().parent == 2
    groups = re.findall(r"lesson (\d) \((.*)\): (\S+)% -> (\S+)%(  <- fell)?", done.stdout)
    assert [(number, classes) for number, classes, *_ in groups] == [("1", "digit 0 and digit 2"), ("2", "digit 3")]
    for _, _, earlier, later, fell in groups:
        assert bool(fell) == (float(later) < float(earlier) - 5)
    fell = ", ".join(number for number, *_, mark in groups if mark)
    assert (f"harmed classes of lesson {fell}." in done.stdout) if fell else ("warning" not in done.stdout)


def test_an_update_in_closed_form_is_said_to_be_exact(with_statistics, digits_folder, tmp_path):
    shutil.copytree(with_statistics, tmp_path / "model")
    done = etag("learn", tmp_path / "model", digits_folder("more ones", (1,), first=130, count=30), "--update")
    assert done.returncode == 0, done.stderr
    assert "other classes: the model is what it would be if these images had been there from the start." in done.stdout
    assert "warning" not in done.stdout
